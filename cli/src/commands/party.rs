//! `mesh party …`: the owners of nodes and data, and this party's key.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use serde_json::json;

use crate::answers::Party;
use crate::context::{Context, note, print, print_json};
use crate::report::{Code, Outcome, Report};
use crate::view::{Cell, Column, Paint, Table, Tint, short_ids, when, width};

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh party ls                                  who takes part
  mesh party allow lab --weight 2 --gpus 8       what a party's jobs get of what all share
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

const ALLOW: &str = "\
Examples:
  mesh party allow lab --weight 2            twice as much as a party of weight 1, if both want more
  mesh party allow lab --cpus 64 --gpus 8    never more than that at once
  mesh party allow lab --cpus any            as much as there is, again

What one party has the others lack: with more than one party in the mesh, a majority of them has
to agree (mesh request ls).";

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
    /// Say what a party's jobs get of what all share: its weight, and the most at once
    #[command(after_help = ALLOW)]
    Allow(Allow),
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

/// What `allow` takes.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true)))]
pub(crate) struct Allow {
    /// Which party, by its name or the beginning of its id
    party: String,
    /// How much it gets beside the others: 1 unless it was said otherwise
    #[arg(long, value_name = "1..1000", group = "what")]
    weight: Option<u32>,
    /// The most cores that its jobs may have at once, or `any`
    #[arg(long, value_name = "N|any", group = "what")]
    cpus: Option<Most>,
    /// The most GPUs, or `any`
    #[arg(long, value_name = "N|any", group = "what")]
    gpus: Option<Most>,
}

/// A limit, or none.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Most(Option<f64>);

impl FromStr for Most {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "any" => Ok(Self(None)),
            _ => match text.parse::<f64>() {
                Ok(number) if number.is_finite() && number >= 0.0 => Ok(Self(Some(number))),
                _ => Err("it is a number from 0 on, or `any`".into()),
            },
        }
    }
}

pub(crate) async fn run(verb: &Verb, context: &Context) -> Outcome {
    match verb {
        Verb::Ls => ls(context).await,
        Verb::Allow(wanted) => allow(wanted, context).await,
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
        Column::new("WEIGHT").right().worth(3),
        Column::new("AT MOST").worth(3),
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
            some(party.weight).into(),
            at_most(party).into(),
            party.founded_at.as_deref().map(|time| when(time, now)).unwrap_or_default().into(),
        ]);
    }
    print(&table.render(width(), Paint::stdout()))
}

/// What its jobs may have at once.
fn at_most(party: &Party) -> String {
    let cpus = party.quota_cpus.map(|cpus| format!("{cpus} cores"));
    let gpus = party.quota_gpus.map(|gpus| format!("{gpus} GPUs"));
    let limits: Vec<String> = [cpus, gpus].into_iter().flatten().collect();
    if limits.is_empty() { "any".into() } else { limits.join(", ") }
}

async fn allow(wanted: &Allow, context: &Context) -> Outcome {
    let Allow { party, weight, cpus, gpus } = wanted;
    let mut body = serde_json::Map::new();
    body.extend(weight.map(|weight| ("weight".to_owned(), json!(weight))));
    body.extend(cpus.map(|Most(cpus)| ("cpus".to_owned(), json!(cpus))));
    body.extend(gpus.map(|Most(gpus)| ("gpus".to_owned(), json!(gpus))));
    let answer = context.api()?.post(&format!("/v1/parties/{party}/share"), body.into()).await?;
    let request = &answer.json()["item"]["request"];
    if context.json {
        print_json(answer.json())?;
    } else if request.is_null() {
        let now: Party = answer.item()?;
        let weight = now.weight.unwrap_or(1);
        print(&format!("Jobs of {party} have weight {weight}, and at most: {}.\n", at_most(&now)))?;
    } else {
        print(&format!(
            "Request {request} waits for a majority of the parties (mesh request ls).\n"
        ))?;
    }
    // Nothing has changed yet: a script must not go on as if it had.
    Ok(if request.is_null() { ExitCode::SUCCESS } else { Code::Consent.exit() })
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
