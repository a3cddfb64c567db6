//! `mesh recover …`: after a majority of the voters is gone for good. Offline: no node may run.
//!
//! ```text
//! survey (on each survivor) ─► choose (once) ─► sign (each party) ─► apply (on the chosen one)
//!                                                                    up --rejoin (on all others)
//! ```
//!
//! Everything is decided in the node crate; the files that pass between the steps are its own.

use std::path::PathBuf;

use mesh_consensus::recover::{Order, RecoverError, Survey};
use mesh_node::dir::{Dir, DirError};
use mesh_node::recover::{self, Chosen, RecoveryError};
use serde_json::json;

use super::init::next;
use crate::context::{Context, print, print_item};
use crate::making::chain;
use crate::report::{Code, Outcome, Report};
use crate::view::count;

pub(crate) const EXAMPLES: &str = "\
Examples, with every node stopped:
  mesh recover survey --out a.survey         on each survivor; then bring the files together
  mesh recover choose *.survey --out order   which survivor knows most
  mesh recover sign order --key party.key    once for each party, until a majority has signed
  mesh recover apply order                   on the survivor that the order names
  mesh up --rejoin                           on all others

This ends the old epoch: what only the lost majority knew is gone. While a majority can still
come back, wait for it instead. apply exits with 5 until a majority of the parties has signed.";

/// The steps, in order.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Write down what this node's log holds, signed by it
    #[command(after_help = "Examples:\n  mesh recover survey --out a.survey")]
    Survey {
        /// Where to write it: a new file
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// From the surveys of all survivors, make the order that names the one to go on from
    #[command(after_help = "Examples:\n  mesh recover choose a.survey b.survey --out order")]
    Choose {
        /// The surveys of all survivors
        #[arg(required = true, value_name = "SURVEY")]
        surveys: Vec<PathBuf>,
        /// Where to write the order: a new file
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Sign an order for a party
    #[command(
        after_help = "Examples:\n  mesh recover sign order\n  mesh recover sign order --key party.key"
    )]
    Sign {
        /// The order, which is added to
        order: PathBuf,
        /// The party's key, if it was taken offline [default: the one in this directory]
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
    },
    /// Begin the new epoch, on the survivor that the order names
    #[command(
        after_help = "Examples:\n  mesh recover apply order\n\nExits with 5 until a majority of the parties has signed the order."
    )]
    Apply {
        /// The order, signed by a majority of the parties
        order: PathBuf,
    },
}

pub(crate) fn run(verb: &Verb, context: &Context) -> Outcome {
    context.only_here("recover")?;
    let needs_a_node = match verb {
        Verb::Survey { .. } | Verb::Apply { .. } => true,
        Verb::Sign { key, .. } => key.is_none(),
        Verb::Choose { .. } => false,
    };
    if needs_a_node && !context.place.is_made() {
        let message = format!("there is no node in {}", context.place.dir.display());
        return Err(Report::new(
            Code::NoNode,
            message,
            "recovery starts from a survivor's directory",
            "mesh recover … --dir DIR",
        ));
    }
    if let Verb::Apply { order } = verb {
        // What cannot be done anyway is nothing to decide.
        recover::check(&Dir::at(&context.place.dir), order).map_err(|error| explain(&error))?;
        context.confirm(
            "Begin a new epoch from this node's log? What only the lost nodes knew is gone.",
        )?;
    }
    step(verb, context)
}

fn step(verb: &Verb, context: &Context) -> Outcome {
    let dir = Dir::at(&context.place.dir);
    let (item, text) = match verb {
        Verb::Survey { out } => {
            let made = recover::survey(&dir, out).map_err(|error| explain(&error))?;
            let Survey { mesh, epoch, node, last_term, last_index, .. } = made;
            let item = json!({
                "file": out, "mesh": mesh, "epoch": epoch, "node": node, "last_term": last_term,
                "last_index": last_index,
            });
            let what = format!("Epoch {epoch}, up to entry {last_index} of term {last_term}.");
            let hint = format!("mesh recover choose {} … --out order", out.display());
            let then = "with the surveys of all survivors, on one of them";
            (item, format!("{what}\n{}\n{}", out.display(), next(&[(hint, then)])))
        }
        Verb::Choose { surveys, out } => {
            let made = recover::choose(surveys, out).map_err(|error| explain(&error))?;
            let Chosen { order: chosen, surveyed } = made;
            let Order { mesh, epoch, survivor, last_term, last_index, .. } = chosen;
            let item = json!({
                "file": out, "mesh": mesh, "epoch": epoch, "survivor": survivor,
                "last_term": last_term, "last_index": last_index, "surveyed": surveyed.len(),
            });
            let what = format!(
                "Of {} surveyed, {} knows most: up to entry {last_index} of term {last_term}.\n\
                 A voter without a survey must be gone for good, or come back with mesh up --rejoin alone: \
                 started as it is, it would go on in the old epoch.",
                count(surveyed.len(), "node"),
                survivor.short()
            );
            let order = out.display();
            let steps = [
                (format!("mesh recover sign {order}"), "for each party, if there are several"),
                (format!("mesh recover apply {order}"), "in the directory of that node"),
            ];
            (item, format!("{what}\n{order}\n{}", next(&steps)))
        }
        Verb::Sign { order, key } => {
            let signed = match key {
                Some(file) => {
                    recover::key_file(file).and_then(|secret| recover::sign(order, &secret))
                }
                None => recover::sign_in(&dir, order),
            };
            let signed = signed.map_err(|error| explain(&error))?;
            let item = json!({
                "file": order, "party_id": signed.party, "signatures": signed.signers.len(),
            });
            let count = signed.signers.len();
            let parties = if count == 1 { "party has" } else { "parties have" };
            let what = format!("Signed for party {}; {count} {parties}.", signed.party.short());
            (item, format!("{what}\n{}\n", order.display()))
        }
        Verb::Apply { order } => {
            let begun = recover::apply(&dir, order).map_err(|error| explain(&error))?;
            let item = json!({ "epoch": begun.epoch, "node": begun.node, "kept": begun.kept });
            let what = format!(
                "Epoch {} begins here. The old log is kept as {}.",
                begun.epoch,
                begun.kept.display()
            );
            let steps = [
                (context.place.command("up"), "here: it leads alone"),
                ("mesh up --rejoin".into(), "on all other survivors"),
                ("mesh node rm NODE".into(), "for each that is lost for good"),
            ];
            (item, format!("{what}\n{}", next(&steps)))
        }
    };
    if context.json { print_item(&item) } else { print(&text) }
}

fn explain(error: &RecoveryError) -> Report {
    let code = match error {
        RecoveryError::Dir(DirError::Absent(_)) => Code::NoNode,
        RecoveryError::Recover(RecoverError::TooFew { .. }) => Code::Consent,
        RecoveryError::Missing(_) | RecoveryError::NotThat { .. } => Code::Usage,
        RecoveryError::Exists(_) => Code::Failed,
        _ => Code::Refused,
    };
    Report::new(code, "the mesh was not recovered", chain(error), error.hint())
}
