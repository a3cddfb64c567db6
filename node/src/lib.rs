//! One running member.
//!
//! This crate joins what the crates to its right keep apart: `consensus` decides, `storage` keeps
//! bytes, `transport` moves them; a node is the three of them and what acts on their result.
//!
//! ```text
//!   CLI, programs ──► api/ ──► Handle ──► author ──► engine ◄──► Net (raft, calls, streams)
//!                               │        (batches)   (Driver)      ▲
//!                               └── looks ─────────────┘           │
//!                                  awareness/ ◄──► Overlay (gossip)│
//!                                  follow: a watcher's feed ───────┘
//! ```
//!
//! | read | for |
//! |---|---|
//! | [`state`], [`voters`] | what all members agree on; who should vote |
//! | [`config`], [`dir`], [`party`], [`clock`] | settings, the data directory, a party's secret, the only reader of the real clock |
//! | [`seal`] | the records of private data: sealed, opened, and what they say together |
//! | [`engine`], [`pace`] | the thread around the consensus driver, and how fast its clock ticks |
//! | [`author`] | this node's own batches: numbered, signed, sent until answered |
//! | [`follow`], [`favourite`] | how a member without a seat follows the log, and how it is served; whom it asks first |
//! | [`join`] | how a newcomer becomes a member |
//! | [`departure`], [`removal`] | how a member leaves; whether it was removed |
//! | [`recover`] | after a majority of the voters is gone for good |
//! | [`wire`] | what nodes ask of one another |
//! | [`service`], [`keeper`] | what peers are answered; what a node does of its own accord |
//! | [`awareness`] | what members tell about themselves |
//! | [`job`] | what a job is: its file, and what stands in the log |
//! | [`scheduler`], [`planner`] | which task goes where: the decision, and who carries it out |
//! | [`executor`], [`work`] | processes and containers; what was given to this node |
//! | [`training`] | models, trained round by round |
//! | [`run`] | a node from its start to its end |
//! | [`handle`], [`api`] | what the rest of the process, programs and the CLI ask of a node |

pub mod api;
pub mod author;
pub mod awareness;
pub mod clock;
pub mod config;
pub mod data;
pub mod departure;
pub mod dir;
pub mod engine;
pub mod executor;
pub mod favourite;
pub mod follow;
pub mod handle;
pub mod handover;
pub mod job;
pub mod join;
pub mod keeper;
pub mod logs;
pub mod pace;
pub mod party;
pub mod planner;
pub mod recover;
pub mod removal;
pub mod run;
pub mod scheduler;
pub mod seal;
pub mod service;
pub mod state;
pub mod training;
pub mod voters;
pub mod wire;
pub mod work;

/// Bytes that nobody can guess.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("a system without randomness cannot keep a secret");
    bytes
}
