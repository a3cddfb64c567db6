//! `mesh data …`: datasets, which every machine can have.
//!
//! | read | for |
//! |---|---|
//! | [`carry`] | push, pull, verify: what moves or reads bytes |
//! | [`flow`] | following such a command to its end, with a bar |
//! | [`list`], [`show`], [`diff`] | ls, log, du; one version and who holds it; two versions |
//! | [`change`] | tag, share, unshare, pin, rm |

use std::path::PathBuf;
use std::time::Duration;

use mesh_node::state::data::MAX_COPIES;

use crate::answers::Dataset;
use crate::context::Context;
use crate::report::Outcome;
use crate::value::{self, DataRef, Expected};

mod carry;
mod change;
mod diff;
pub(super) mod flow;
mod list;
mod show;

pub(crate) const EXAMPLES: &str = "\
Examples:
  mesh data push ./mnist                 make mnist@1 of a directory; again after a change: mnist@2
  mesh data pull mnist                   the newest version, into ./mnist
  mesh data pull clinic-a/xray@3 /scratch/xray
  mesh data ls                           what there is
  mesh data show mnist                   one version, and which node holds how much of it
  mesh data tag mnist@2 clean            then mnist:clean means version 2
  mesh data share mnist@2 clinic-b       let another party read it

A dataset is called NAME (the newest version), NAME@3 or NAME:TAG; another party's PARTY/NAME.
each/NAME is every party's own: to one who reads it here, this party's.";

const PUSH: &str = "\
Examples:
  mesh data push ./mnist                           named after the directory
  mesh data push /data/xray --name xray --share clinic-b --share clinic-c
  mesh data push ./mnist --tag clean               and make mnist:clean mean this version
  mesh data push /nas/laion --in-place             take no second copy on this machine
  mesh data push ./scratch --copies 1 --no-wait    return as soon as the version is known

Only what no earlier version holds is stored and sent. It returns when most copies stand, or says
how many are missing. Exits with 124 if nodes that could have one do not answer: the version is
made, but not acknowledged yet, and is copied as soon as they do. Exits with 1 if they have no room
for it: then it is copied as soon as there is some. Stopped with Ctrl-C, the same command resumes:
files that were stored whole are kept, and one that was being read is read again.

Without --share, --open or --listed, only this party can read it; but in a mesh of one party it is
open, also to parties that join later. mesh data unshare NAME@N keeps it to this party.";
const PULL: &str = "\
Examples:
  mesh data pull mnist                      the newest version, into ./mnist
  mesh data pull mnist:clean /scratch/mnist
  mesh data pull mnist ./work --writable    files of your own, which may be changed
  mesh data pull mnist --store-only         only onto this node, for jobs to come

The files are read-only and share their room with the store, unless they are to be writable. Only
what this machine lacks is fetched. Exits with 124 if for as long as --wait nobody answers who has
what is missing. Stopped with Ctrl-C, the same command resumes.

Contents, names and the executable bit are kept; owners, times and other modes are not: what was
0600 is 0444 here, and whoever may enter the directory can read it.";
const LS: &str = "\
Examples:
  mesh data ls                                the newest version of each
  mesh data ls --all                          every version
  mesh data ls --party clinic-a               what another party shares or lists
  mesh data ls --json | jq -r '.items[] | select(.copies < .copies_wanted) | .name'";
const SHOW: &str = "\
Examples:
  mesh data show mnist
  mesh data show clinic-a/xray@3
  mesh data show mnist:clean --json | jq -r .item.manifest";
const LOG: &str = "\
Examples:
  mesh data log mnist                     every version, newest first
  mesh data log mnist --json | jq '.items[0].version'";
const DIFF: &str = "\
Examples:
  mesh data diff mnist@1 mnist@2          + added, - removed, ~ changed
  mesh data diff mnist:clean mnist        from a tag to the newest";
const TAG: &str = "\
Examples:
  mesh data tag mnist@2 clean             mnist:clean means version 2 from now on
  mesh data tag mnist@3 clean --expect 2  only if it stands at 2 still: nobody moved it meanwhile
  mesh data tag mnist@1 clean --expect none
  mesh data tag mnist clean --rm          take the tag away";
const SHARE: &str = "\
Examples:
  mesh data share mnist@2 clinic-b clinic-c    these parties may read it
  mesh data share mnist@2 --open               every party may
  mesh data share mnist@2 --listed             others see its name and size, and nothing else

Whoever may read a version sees its tags, too. While it is private, so are they.

What was private gets a new number if others have seen a later one, or its own before: each is given
once. The answer tells both (old_version of --json).";
const UNSHARE: &str = "\
Examples:
  mesh data unshare mnist@2 clinic-c      this party may read it no longer
  mesh data unshare mnist@2               nobody else may

The others' nodes are given nothing more of it, and delete what is in their stores, pinned or not.
What was pulled into a directory, or copied elsewhere, stays there.";
const PIN: &str = "\
Examples:
  mesh data pin mnist@2                   keep it on this node whatever else needs the room
  mesh data pin mnist@2 --off             it may go again";
const RM: &str = "\
Examples:
  mesh data rm mnist@1                    asks first
  mesh data rm mnist --all --yes          every version; does not ask

The bytes go where no other version needs them. What was pulled into a directory stays there.";
const VERIFY: &str = "\
Examples:
  mesh data verify mnist                  read every byte on this node, and fetch what is damaged
  mesh data verify mnist:clean --json | jq '.item.damaged[].path'

Exits with 1 if something is damaged and could not be repaired.";
const DU: &str = "\
Examples:
  mesh data du                            what takes room on this node, and what may go
  mesh data du --json | jq .item.store_bytes";

/// What can be done with datasets.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Make a version of a file or directory, and copies of it in the mesh
    #[command(after_help = PUSH)]
    Push(Push),
    /// Fetch a version, into a directory
    #[command(after_help = PULL)]
    Pull(Pull),
    /// What there is
    #[command(after_help = LS)]
    Ls {
        /// Every version, not the newest alone
        #[arg(long)]
        all: bool,
        /// Of this party alone
        #[arg(long, value_name = "PARTY", value_parser = value::name)]
        party: Option<String>,
    },
    /// One version, and which node holds how much of it
    #[command(after_help = SHOW)]
    Show {
        /// Which one
        #[arg(value_name = "REF")]
        data: DataRef,
    },
    /// Every version of a name, newest first
    #[command(after_help = LOG)]
    Log {
        /// Of what
        #[arg(value_name = "NAME", value_parser = value::data_name)]
        data: DataRef,
    },
    /// How one version differs from another
    #[command(after_help = DIFF)]
    Diff {
        /// The older one
        #[arg(value_name = "FROM")]
        from: DataRef,
        /// The newer one
        #[arg(value_name = "TO")]
        to: DataRef,
    },
    /// Give a version a second name, or take it away
    #[command(after_help = TAG)]
    Tag(Tag),
    /// Let others read a version
    #[command(after_help = SHARE)]
    Share(Share),
    /// Let others read a version no longer
    #[command(after_help = UNSHARE)]
    Unshare {
        /// Which one
        #[arg(value_name = "REF")]
        data: DataRef,
        /// Who [default: everybody]
        #[arg(value_name = "PARTY", value_parser = value::name)]
        from: Vec<String>,
    },
    /// Keep a version on this node
    #[command(after_help = PIN)]
    Pin {
        /// Which one
        #[arg(value_name = "REF")]
        data: DataRef,
        /// Keep it no longer
        #[arg(long)]
        off: bool,
    },
    /// Remove a version for good
    #[command(after_help = RM)]
    Rm {
        /// Which one: NAME@N or NAME:TAG; with --all NAME
        #[arg(value_name = "REF")]
        data: DataRef,
        /// Every version of the name
        #[arg(long)]
        all: bool,
    },
    /// Read every byte of a version on this node, and repair what is damaged
    #[command(after_help = VERIFY)]
    Verify {
        /// Which one
        #[arg(value_name = "REF")]
        data: DataRef,
    },
    /// What takes room on this node
    #[command(after_help = DU)]
    Du,
}

/// What `push` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Push {
    /// A file or a directory of this machine
    path: PathBuf,
    /// What to call it [default: the path's last part]
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    name: Option<String>,
    /// Let this party read it; may be repeated
    #[arg(long, value_name = "PARTY", value_parser = value::name)]
    share: Vec<String>,
    /// Let every party read it
    #[arg(long, conflicts_with_all = ["share", "listed"])]
    open: bool,
    /// Let every party see its name and size, and nothing else
    #[arg(long)]
    listed: bool,
    /// How many nodes keep a copy [default: the mesh's]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_COPIES)))]
    copies: Option<u32>,
    /// Use the files where they are, instead of copying them; they must not change
    #[arg(long)]
    in_place: bool,
    /// Push what symbolic links point at, instead of the links
    #[arg(long)]
    follow: bool,
    /// Give the new version this tag
    #[arg(long, value_name = "TAG", value_parser = value::name)]
    tag: Option<String>,
    /// Return as soon as the version is known; its copies follow
    #[arg(long)]
    no_wait: bool,
}

/// What `pull` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Pull {
    /// Which one
    #[arg(value_name = "REF")]
    data: DataRef,
    /// Where to; it becomes the dataset's directory [default: ./NAME]
    #[arg(value_name = "DIR")]
    into: Option<PathBuf>,
    /// Make files of their own, which may be changed
    #[arg(long)]
    writable: bool,
    /// Only fetch it onto the node; write no directory
    #[arg(long, conflicts_with_all = ["into", "writable"])]
    store_only: bool,
    /// How long to wait for a node that has what is missing
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = value::duration)]
    // So that -1h is a time that does not fit, not an option that nobody knows.
    #[arg(allow_hyphen_values = true)]
    wait: Duration,
}

/// What `tag` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Tag {
    /// Which version
    #[arg(value_name = "REF")]
    data: DataRef,
    /// The tag
    #[arg(value_parser = value::name)]
    tag: String,
    /// Only if the tag stands at this version now; none: only if it is new
    #[arg(long, value_name = "N", value_parser = value::expected)]
    expect: Option<Expected>,
    /// Take the tag away
    #[arg(long)]
    rm: bool,
}

/// What `share` takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Share {
    /// Which version
    #[arg(value_name = "REF")]
    data: DataRef,
    /// With whom
    #[arg(value_name = "PARTY", value_parser = value::name)]
    #[arg(required_unless_present_any = ["open", "listed"])]
    with: Vec<String>,
    /// With every party
    #[arg(long, conflicts_with_all = ["with", "listed"])]
    open: bool,
    /// Let every party see its name and size, and nothing else
    #[arg(long)]
    listed: bool,
}

impl Verb {
    /// Whether it moves or reads so much that it may be stopped on the way, and goes on when typed again.
    pub(crate) fn moves_data(&self) -> bool {
        matches!(self, Self::Push(_) | Self::Pull(_) | Self::Verify { .. })
    }
}

/// Fetches a version, into a directory.
pub(super) async fn pull(pull: &Pull, context: &Context) -> Outcome {
    carry::pull(pull, context).await
}

/// One version, and which node holds how much of it, as people see it on standard output.
pub(super) fn shown(data: &Dataset) -> String {
    show::text(data, show::Look::stdout())
}

pub(crate) async fn run(verb: &Verb, context: &Context) -> Outcome {
    match verb {
        Verb::Push(push) => carry::push(push, context).await,
        Verb::Pull(pull) => carry::pull(pull, context).await,
        Verb::Verify { data } => carry::verify(data, context).await,
        Verb::Ls { all, party } => list::ls(*all, party.as_deref(), context).await,
        Verb::Log { data } => list::log(data, context).await,
        Verb::Du => list::du(context).await,
        Verb::Show { data } => show::run(data, context).await,
        Verb::Diff { from, to } => diff::run(from, to, context).await,
        Verb::Tag(tag) => change::tag(tag, context).await,
        Verb::Share(share) => change::share(share, context).await,
        Verb::Unshare { data, from } => change::unshare(data, from, context).await,
        Verb::Pin { data, off } => change::pin(data, !off, context).await,
        Verb::Rm { data, all } => change::rm(data, *all, context).await,
    }
}

#[cfg(test)]
mod tests;
