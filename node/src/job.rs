//! What a job is, before anybody has decided where it runs.
//!
//! ```text
//! job.toml ──file.rs──► JobFile ──(names looked up, code pushed, secrets sealed)──► JobSpec ──► the log
//!            line, caret, fix                                                       spec.rs
//! ```
//!
//! A *job* has *tasks*, each runs on one node; a try at a task is an *attempt*. Tasks that are alike form a
//! *group* (`worker`, `ps`). A job without `[[task]]` has one group called `worker`. Where tasks go is decided in
//! [`crate::scheduler`], what has become of them stands in [`crate::state::jobs`], and running them is the
//! business of [`crate::executor`].

pub mod allotment;
pub mod file;
pub mod help;
pub mod spec;
pub mod training;

pub use allotment::Allotment;
pub use file::{FileError, JobFile};
pub use spec::{
    Checkpoint, Class, GpuAsk, Group, Image, JobSpec, Mount, Output, Place, Range, Resources,
    Retry, RetryOn, SealedSecret, Source,
};
