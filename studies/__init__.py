"""Studies: experiments of papers, one per file, with the question, the paper's figures and our measures."""
