//! What all nodes agree on.
//!
//! This crate decides and never acts: no socket, no file, no clock, no thread. Given the same events
//! in the same order it does the same, which is what lets `chaos-tests` replay any failure from its
//! seed.
//!
//! ```text
//!            events                                      committed entries
//!  engine ───────────► driver ──► admit ──► core (raft-rs) ──────────► replica ──► StateMachine
//!     ▲                  │                                               │
//!     └── messages, answers ◄── after the Log has made them durable ─────┘
//! ```
//!
//! Read [`driver`] first: it is the loop and the one safe order. Then [`replica`] (what a committed
//! entry does), [`admit`] (what is not even heard), [`core`] (raft-rs behind our own types),
//! [`autopilot`] (who should vote) and [`recover`] (after the majority is gone for good). For members
//! without a seat there are [`bookmark`] (whom to believe) and [`follow`] (how they come to sit). The words
//! are in [`id`], [`time`], [`command`], [`message`], [`log`] and [`machine`].

pub mod admission;
pub mod admit;
pub mod autopilot;
pub mod bookmark;
pub mod command;
pub mod core;
pub mod driver;
pub mod follow;
pub mod handover;
pub mod id;
pub mod log;
pub mod machine;
pub mod message;
pub mod planted;
pub mod recover;
pub mod replica;
pub mod time;
