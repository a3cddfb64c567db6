//! What every command is given: which node is meant, how to answer, whether to ask.

use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::args::Globals;
use crate::client::Api;
use crate::report::{Code, Outcome, Report};
use crate::view;

/// The options that stand before or after any command, made sense of.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    /// Whose directory: absolute.
    pub(crate) place: Place,
    /// Answer with JSON.
    pub(crate) json: bool,
    /// Do not ask.
    pub(crate) yes: bool,
    api: Option<String>,
}

/// A node's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Absolute, so that it means the same to a node in the background.
    pub(crate) dir: PathBuf,
    /// Whether it was named on the command line: then a command that we suggest has to name it, too.
    named: bool,
}

impl Place {
    /// A directory that the command line named.
    pub(crate) fn named(dir: PathBuf) -> Self {
        Self { dir, named: true }
    }

    /// `--dir` › `MESH_DIR` › `/var/lib/mesh` (root) › `$XDG_STATE_HOME/mesh`.
    fn find(
        flag: Option<PathBuf>,
        variable: impl Fn(&str) -> Option<OsString>,
        root: bool,
    ) -> Result<Self, Report> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let state = || {
            // The base directory specification says that a relative path is to be ignored.
            let given = set("XDG_STATE_HOME").filter(|path| path.is_absolute());
            given.or_else(|| Some(set("HOME")?.join(".local/state"))).map(|path| path.join("mesh"))
        };
        // Root's, and that of a user without a home: a daemon.
        let system = || PathBuf::from("/var/lib/mesh");
        let named = flag.is_some();
        let own = || if root { None } else { state() };
        let dir = flag.or_else(|| set("MESH_DIR")).or_else(own).unwrap_or_else(system);
        let dir = std::path::absolute(&dir).map_err(|error| {
            let error = anyhow::Error::from(error).context(format!("{} is no path", dir.display()));
            Report::failed(&error, "mesh --dir DIR …")
        })?;
        Ok(Self { dir, named })
    }

    /// The socket on which the node of this directory answers.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("run/mesh.sock")
    }

    /// Where a node in the background writes.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("logs/node.log")
    }

    /// Whether a node was ever made here.
    pub(crate) fn is_made(&self) -> bool {
        self.dir.join("member").exists() || self.dir.join("state.redb").exists()
    }

    /// Whether a join was begun here that waits for the other parties.
    pub(crate) fn is_joining(&self) -> bool {
        mesh_node::dir::Dir::at(&self.dir).is_joining()
    }

    /// Whether the node that was made here has left its mesh, so that it never runs again.
    pub(crate) fn has_left(&self) -> bool {
        let membership = mesh_node::dir::Dir::at(&self.dir).membership();
        matches!(membership, Ok(Some(own)) if own.left)
    }

    /// Whether the node that was made here was removed from its mesh, as far as it knew when it last ran.
    pub(crate) fn was_removed(&self) -> bool {
        mesh_node::dir::Dir::at(&self.dir).was_removed()
    }

    /// `mesh WORDS`, with the directory if it has to be named.
    pub(crate) fn command(&self, words: &str) -> String {
        if self.named {
            format!("mesh {words} --dir {}", quoted(&self.dir))
        } else {
            format!("mesh {words}")
        }
    }
}

/// A path as a shell reads it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

impl Context {
    /// Reads the options, and the environment where they are silent.
    pub(crate) fn new(globals: Globals) -> Result<Self, Report> {
        let Globals { dir, json, api, yes } = globals;
        let variable = |name: &str| std::env::var_os(name);
        let api = remote(api, dir.is_some(), std::env::var("MESH_API").ok())?;
        let place = Place::find(dir, variable, nix::unistd::geteuid().is_root())?;
        Ok(Self { place, json, yes, api })
    }

    /// The node to ask: a remote one if there is a URL, else that of the directory.
    pub(crate) fn api(&self) -> Result<Api, Report> {
        match &self.api {
            Some(url) => Api::remote(url, std::env::var_os("MESH_TOKEN_FILE").map(PathBuf::from)),
            None => Ok(Api::local(self.place.clone())),
        }
    }

    /// Whether another machine's node is meant, whose directory cannot be seen from here.
    pub(crate) fn is_remote(&self) -> bool {
        self.api.is_some()
    }

    /// `mesh WORDS`, as it has to be typed to ask the same node.
    pub(crate) fn command(&self, words: &str) -> String {
        if self.is_remote() { format!("mesh {words}") } else { self.place.command(words) }
    }

    /// Refuses what only makes sense on the node's own machine.
    pub(crate) fn only_here(&self, command: &str) -> Result<(), Report> {
        if !self.is_remote() {
            return Ok(());
        }
        Err(Report::new(
            Code::Usage,
            format!("mesh {command} works on this machine only"),
            "--api or MESH_API names a node elsewhere",
            format!("log in there and run mesh {command}"),
        ))
    }

    /// Asks before something that cannot be undone.
    pub(crate) fn confirm(&self, question: &str) -> Result<(), Report> {
        if self.yes {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            return Err(Report::new(
                Code::Usage,
                "this has to be confirmed, and there is no terminal to ask on",
                view::clean(question),
                "the same command with --yes",
            ));
        }
        eprint!("{question} [y/N] ");
        let mut answer = String::new();
        // An answer that cannot be read is not a yes.
        let _ = io::stdin().lock().read_line(&mut answer);
        if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
            return Ok(());
        }
        Err(Report::new(Code::Failed, "nothing was done", "the answer was not yes", "mesh --help"))
    }
}

/// The node elsewhere that is meant, if one is. What was typed goes before the environment.
fn remote(
    flag: Option<String>,
    dir_was_typed: bool,
    variable: Option<String>,
) -> Result<Option<String>, Report> {
    let set = |url: Option<String>| url.filter(|url| !url.is_empty());
    match (set(flag), dir_was_typed) {
        (Some(_), true) => Err(Report::new(
            Code::Usage,
            "--api does not go with --dir",
            "the one names a node elsewhere, the other the node of a directory here",
            "leave one of them out",
        )),
        (Some(url), false) => Ok(Some(url)),
        (None, true) => Ok(None),
        (None, false) => Ok(set(variable)),
    }
}

/// One object as a line.
pub(crate) fn print_json(value: &Value) -> Outcome {
    print(&format!("{value}\n"))
}

/// One item in the frame that every answer has, where no node was asked. `index` and `age_ms` say how fresh a node's
/// answer is, so they are not there; what is made of a node's answer goes through [`Answer::around`].
///
/// [`Answer::around`]: crate::client::Answer::around
pub(crate) fn print_item(item: &Value) -> Outcome {
    print_json(&json!({ "schema": 1, "item": item }))
}

/// Text to standard output.
pub(crate) fn print(text: &str) -> Outcome {
    written(io::stdout().write_all(text.as_bytes()))
}

/// A remark beside the answer: to standard error, so that scripts do not meet it.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whoever closed the pipe has read enough (`mesh --help | head -1`): that is no failure.
pub(crate) fn written(result: io::Result<()>) -> Outcome {
    match result.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error)
            .context("the answer could not be written")
            .map_err(|error| Report::failed(&error, "send the output to a file or a terminal")),
        _ => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(flag: Option<&str>, set: &[(&str, &str)], root: bool) -> PathBuf {
        let variable = |name: &str| {
            set.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        Place::find(flag.map(PathBuf::from), variable, root).unwrap().dir
    }

    #[test]
    fn the_directory_is_the_flag_or_the_variable_or_the_systems_or_the_users() {
        let all = [("MESH_DIR", "/m"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(find(Some("/f"), &all, true), Path::new("/f"));
        assert_eq!(find(None, &all, true), Path::new("/m"));
        assert_eq!(find(None, &all[1..], true), Path::new("/var/lib/mesh"));
        assert_eq!(find(None, &all[1..], false), Path::new("/x/mesh"));
        assert_eq!(find(None, &all[2..], false), Path::new("/h/.local/state/mesh"));
        let relative = [("XDG_STATE_HOME", "x"), ("HOME", "/h")];
        assert_eq!(find(None, &relative, false), Path::new("/h/.local/state/mesh"));
        assert_eq!(find(None, &[], false), Path::new("/var/lib/mesh"));
    }

    #[test]
    fn what_was_typed_goes_before_the_address_in_the_environment() {
        let url = |text: &str| Some(text.to_owned());
        assert_eq!(remote(url("a"), false, url("b")).unwrap(), url("a"));
        assert_eq!(remote(None, false, url("b")).unwrap(), url("b"));
        assert_eq!(remote(None, true, url("b")).unwrap(), None);
        assert_eq!(remote(url("a"), true, None).unwrap_err().code, Code::Usage);
        assert_eq!(remote(None, false, url("")).unwrap(), None);
    }

    #[test]
    fn a_suggested_command_names_a_directory_that_was_named() {
        let place = Place::named("/tmp/a b".into());
        assert_eq!(place.command("up"), "mesh up --dir '/tmp/a b'");
        let place = Place { named: false, ..place };
        assert_eq!(place.command("up"), "mesh up");
    }
}
