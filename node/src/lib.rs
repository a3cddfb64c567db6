//! One running member.
//!
//! This crate joins what the crates to its right keep apart: `consensus` decides, `storage` keeps
//! bytes, `transport` moves them; a node is the three of them and what acts on their result.
//!
//! So far it holds [`state`], what all members agree on, and [`voters`], the leader's eye on who
//! should vote. What comes beside them: the event loop around the consensus driver (`engine.rs`), what members tell each
//! other about themselves (`awareness/`), the planner (`scheduler/`), whoever runs tasks
//! (`executor/`), datasets (`data/`), consent between parties (`consent/`), training (`training/`)
//! and what programs and browsers see (`api/`, `pages/`).

pub mod state;
pub mod voters;
