//! `mesh completions`.

use clap::CommandFactory;
use serde_json::json;

use crate::args::Args;
use crate::context::{Context, print, print_item};
use crate::report::Outcome;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh completions bash > ~/.local/share/bash-completion/completions/mesh
  mesh completions zsh > ~/.zfunc/_mesh        # with ~/.zfunc in $fpath
  mesh completions fish > ~/.config/fish/completions/mesh.fish";

pub(crate) fn run(shell: clap_complete::Shell, context: &Context) -> Outcome {
    // Into memory first: the generator panics where a write fails.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "mesh", &mut script);
    let script = String::from_utf8_lossy(&script);
    if context.json {
        return print_item(&json!({ "shell": shell.to_string(), "script": script }));
    }
    print(&script)
}
