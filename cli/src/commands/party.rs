//! `mesh party …`: the owners of nodes and data, and this party's key.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::answers::Party;
use crate::context::{Context, note, print, print_json};
use crate::report::{Code, Outcome, Report};
use crate::view::{Cell, Column, Paint, Table, Tint, short_ids, when, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh party ls                                  who takes part
  mesh party key --out party.key                 a copy of this party's signing key
  mesh party key --out party.key --remove        and none left on this node
  mesh party key --in party.key                  bring it back to this node";

const KEY: &str = "\
Examples:
  mesh party key --out /media/usb/party.key            keep a copy somewhere safe
  mesh party key --out /media/usb/party.key --remove   take it off this node
  mesh party key --in /media/usb/party.key             bring it back

Each node of a party holds its key, but for workers. With the key on none of them, the mesh runs on;
there are no new tickets, grants or removals.";

/// The longest file that is read for a key.
const MAX_KEY: u64 = 4096;

/// What can be done with parties.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Every party of the mesh
    #[command(
        after_help = "Examples:\n  mesh party ls\n  mesh party ls --json | jq '.items[].name'"
    )]
    Ls,
    /// Copy this party's signing key to a file, take it off this node, or bring it back
    #[command(after_help = KEY)]
    Key {
        /// Where to write it: a new file, readable by you alone [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Then remove it from this node
        #[arg(long, requires = "out")]
        remove: bool,
        /// Bring back what --out wrote: this node holds the key again
        #[arg(long = "in", value_name = "FILE", conflicts_with = "out")]
        from: Option<PathBuf>,
    },
}

pub(crate) async fn run(verb: &Verb, context: &Context) -> Outcome {
    match verb {
        Verb::Ls => ls(context).await,
        Verb::Key { from: Some(from), .. } => bring(from, context).await,
        Verb::Key { out, remove, .. } => key(out.as_deref(), *remove, context).await,
    }
}

async fn ls(context: &Context) -> Outcome {
    let answer = context.api()?.get("/v1/parties").await?;
    if context.json {
        return print_json(answer.json());
    }
    let parties: Vec<Party> = answer.items()?;
    let now = mesh_node::clock::now().0;
    let ids = short_ids(&parties.iter().map(|party| party.id.as_str()).collect::<Vec<_>>());
    let mut table = Table::new(&[
        Column::new("NAME").least(8),
        Column::new("ID").worth(1),
        Column::new("NODES").right(),
        Column::new("VOTERS").right(),
        Column::new("FOUNDED").worth(2),
    ]);
    for (party, id) in parties.iter().zip(ids) {
        let some = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
        let tint = if party.own { Tint::Strong } else { Tint::Plain };
        table.row([
            Cell::new(&party.name, tint),
            id.into(),
            some(party.nodes).into(),
            some(party.voters).into(),
            party.founded_at.as_deref().map(|time| when(time, now)).unwrap_or_default().into(),
        ]);
    }
    print(&table.render(width(), Paint::stdout()))
}

async fn key(out: Option<&Path>, remove: bool, context: &Context) -> Outcome {
    let api = context.api()?;
    if remove {
        context.confirm("Remove the party's signing key from this node?")?;
    }
    // Copied first, removed second: whatever happens in between, there is a key.
    let answer = api.post("/v1/party/key", json!({ "remove": false })).await?;
    let secret = answer.json()["item"]["secret"].as_str().unwrap_or_default();
    if secret.is_empty() {
        let message = "the node did not hand out the key";
        return Err(Report::new(
            Code::Refused,
            message,
            "it holds none, or it was taken offline",
            "mesh party key --in FILE brings it back to this node",
        ));
    }
    let Some(out) = out else {
        return if context.json {
            print_json(answer.json())
        } else {
            print(&format!("{secret}\n"))
        };
    };
    save(out, secret).map_err(|error| {
        let message = format!("the key was not written to {}", out.display());
        let hint = "name a new file in a directory of yours; nothing was removed";
        Report::new(Code::Failed, message, error.to_string(), hint)
    })?;
    let last = match remove {
        true => api.post("/v1/party/key", json!({ "remove": true })).await?,
        false => answer,
    };
    if context.json {
        let item = json!({ "file": out, "removed": remove });
        return print_json(&last.around("item", item));
    }
    note(if remove {
        "This node no longer holds the party's signing key; the party's other nodes do, until the same is \
         done there. Keep the file."
    } else {
        "Whoever holds this file can act for the party."
    });
    print(&format!("{}\n", out.display()))
}

/// Gives a key that was kept elsewhere back to the node.
async fn bring(from: &Path, context: &Context) -> Outcome {
    let read = File::open(from).and_then(|file| {
        let mut text = String::new();
        file.take(MAX_KEY).read_to_string(&mut text)?;
        Ok(text)
    });
    let text = read.map_err(|error| {
        let message = format!("the key in {} cannot be read", from.display());
        Report::new(Code::Failed, message, error.to_string(), "mesh party key --in FILE")
    })?;
    let answer = context.api()?.post("/v1/party/key", json!({ "secret": text.trim() })).await?;
    if context.json {
        return print_json(answer.json());
    }
    print("This node holds the party's signing key again.\n")
}

/// Writes a secret to a file that was not there, and does not return before it is on disk.
fn save(path: &Path, secret: &str) -> std::io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{secret}")?;
    file.sync_all()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_is_private_and_overwrites_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("party.key");
        save(&path, "secret").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret\n");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(save(&path, "other").unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret\n");
    }
}
