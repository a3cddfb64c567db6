//! `mesh service install`: lets systemd start the node with the machine.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::context::{Context, print, print_item};
use crate::report::{Code, Outcome, Report};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh service install --dry-run       print the unit, write nothing
  sudo mesh service install            for the whole machine
  mesh service install --user          for your own account";

/// What can be done with the service.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Write a systemd unit that runs this node
    #[command(after_help = EXAMPLES)]
    Install {
        /// For your own account instead of the whole machine
        #[arg(long)]
        user: bool,
        /// Print the unit and write nothing
        #[arg(long)]
        dry_run: bool,
    },
}

pub(crate) fn run(verb: &Verb, context: &Context) -> Outcome {
    context.only_here("service install")?;
    let Verb::Install { user, dry_run } = verb;
    let program = std::env::current_exe().map_err(|error| {
        Report::failed(
            &anyhow::Error::from(error).context("mesh does not know where it lies"),
            "mesh up",
        )
    })?;
    let unit = unit(&program, &context.place.dir, *user)?;
    let path = path(*user)?;
    if *dry_run {
        if context.json {
            return print_item(&json!({ "path": path, "unit": unit, "written": false }));
        }
        return print(&unit);
    }
    write(&path, &unit).map_err(|error| {
        let message = format!("{} could not be written", path.display());
        let hint = if *user {
            "mesh service install --user --dry-run"
        } else {
            "sudo mesh service install, or mesh service install --user"
        };
        Report::new(Code::Failed, message, error.to_string(), hint)
    })?;
    let flag = if *user { " --user" } else { "" };
    let start = format!("systemctl{flag} daemon-reload && systemctl{flag} enable --now mesh");
    if context.json {
        return print_item(&json!({ "path": path, "unit": unit, "written": true, "next": start }));
    }
    let mut text = format!("Written: {}\n\nNext:\n", path.display());
    if context.place.is_made() {
        let _ = writeln!(
            text,
            "  {}   if it runs in the background now",
            context.place.command("down")
        );
    } else {
        let _ = writeln!(
            text,
            "  {} or {}, then {0}",
            context.place.command("init"),
            context.place.command("join TICKET")
        );
    }
    let _ = writeln!(text, "  {start}");
    if *user {
        let _ =
            writeln!(text, "  loginctl enable-linger   so that it runs while you are logged out");
    }
    print(&text)
}

fn path(user: bool) -> Result<PathBuf, Report> {
    if !user {
        return Ok("/etc/systemd/system/mesh.service".into());
    }
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")));
    config.map(|config| config.join("systemd/user/mesh.service")).ok_or_else(|| {
        let cause = "neither XDG_CONFIG_HOME nor HOME is set";
        Report::new(
            Code::Failed,
            "there is no place for your units",
            cause,
            "mesh service install --dry-run",
        )
    })
}

fn write(path: &Path, unit: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // Whole or not at all: systemd may read it at any time.
    let new = path.with_extension("service.new");
    std::fs::write(&new, unit)?;
    std::fs::rename(new, path)
}

fn unit(program: &Path, dir: &Path, user: bool) -> Result<String, Report> {
    let (program, dir) = (word(program)?, word(dir)?);
    // A user's own manager has no network target to wait for.
    let after =
        if user { "" } else { "After=network-online.target\nWants=network-online.target\n" };
    let wanted = if user { "default.target" } else { "multi-user.target" };
    // Tasks outlive the node, and are not stopped with it; one that takes too much memory does not stop the node.
    let tasks = "KillMode=process\nDelegate=yes\nOOMPolicy=continue\n";
    Ok(format!(
        "[Unit]\nDescription=mesh node\n{after}\n\
         [Service]\nType=exec\nExecStart={program} up --dir {dir}\n\
         Restart=on-failure\nRestartSec=1\nTimeoutStopSec=30\nLimitNOFILE=65536\n{tasks}\n\
         [Install]\nWantedBy={wanted}\n"
    ))
}

/// A path as systemd reads it: quoted, with its own specifiers and variables defused.
fn word(path: &Path) -> Result<String, Report> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control)).ok_or_else(|| {
        let cause = "systemd takes no such characters in a unit";
        Report::new(
            Code::Failed,
            format!("{} cannot stand in a unit", path.display()),
            cause,
            "mesh --dir DIR service install",
        )
    })?;
    let text =
        text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let plain = |c: char| c.is_alphanumeric() || "/._-+@%:".contains(c);
    Ok(if text.chars().all(plain) { text } else { format!("\"{text}\"") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_names_this_program_and_this_directory() {
        let unit = unit(Path::new("/usr/bin/mesh"), Path::new("/srv/100% mine/$x"), false).unwrap();
        assert!(
            unit.contains("ExecStart=/usr/bin/mesh up --dir \"/srv/100%% mine/$$x\"\n"),
            "{unit}"
        );
        assert!(unit.contains("WantedBy=multi-user.target"));
    }

    #[test]
    fn a_path_that_would_add_lines_to_a_unit_is_refused() {
        assert!(word(Path::new("/a\nExecStart=/bin/sh")).is_err());
    }
}
