"""Studies: experiments of the papers, one file each; what it shows, what the paper reports, what we measure."""
