//! Keeps bytes.
//!
//! # What survives a crash
//!
//! - [`log`]: whatever [`Log::write`](mesh_consensus::log::Log::write) returned `Ok` for, whole.
//!   Of a write that was in flight, all or nothing. This holds if the power goes at any moment, also
//!   while the log is being made, opened or repaired.
//! - After a failed write or sync a log takes no more writes: the kernel may have dropped the
//!   pages, and a second try would be believed for nothing. What was acknowledged before is safe.
//! - A log that is damaged, from a newer mesh, or not a log at all is refused with an error that
//!   says what was found and what to do, and its file stays as it was, byte for byte. A flipped
//!   bit is found, or was in a place that holds nothing.
//!
//! - [`store`]: whatever was claimed, whole: an object or a manifest is on stable storage before its name
//!   says so. Of an import or a fetch that was cut short nothing is claimed but whole objects, and it goes on from there.
//!   Bytes that do not hash to their name are never handed out.
//!
//! One thing is not promised. If the power goes *and* a page of the very last write rots before
//! the next start, the log may come back as it was before that write: nobody can tell such a page
//! from one that was being written. After a mere kill of the process it is told apart.
//!
//! # How it is built
//!
//! ```text
//!   log        entries, hard state, snapshot: one redb transaction and one sync a write
//!    │
//!   backend    redb's file; on trial until everything in it has been examined
//!    │
//!   disk       Disk and File: the edge. Real, or
//!   mem        in memory, where a test decides what goes wrong
//! ```
//!
//! Beside it stands what datasets are made of:
//!
//! ```text
//!   chunk      where content is cut, and how the pieces are named
//!   manifest   what a version consists of; whatever is wrong with it is refused
//!   diff       what changed from one version to another
//!   tree       a version as a directory
//! ```

pub mod bitmap;
pub mod chunk;
pub mod diff;
pub mod disk;
pub mod import;
pub mod log;
pub mod manifest;
pub mod mem;
pub mod placement;
pub mod store;
pub mod swarm;
pub mod tree;
