//! The parameter server: a model in shards on several nodes, workers that pull values and push gradients.
//!
//! ```text
//!   worker (any language, or the built-in trainer)
//!     │  GET next, POST pull, POST push                                 docs/worker-protocol.md
//!   worker.rs     which step is next; cuts by shards, sends again until each shard has it
//!     │  Ask::Server, Header::Push, Header::Pull                        wire.rs, client.rs
//!   intake.rs     the primary: may it ask, and does this node answer?
//!   primary.rs    one operation after the other: to the backup, then here, then acknowledged
//!     │  Header::Replica
//!   backup.rs     the same operations on a copy of the same shard
//!
//!   coordinate.rs under a lease: lays out shards, has backups take over, keeps checkpoints, ends
//!     │  ServerLay, ServerShard, ServerReady, ServerKeep
//!   state/server.rs  who has which shard, under which epoch
//! ```
//!
//! | file | holds | is |
//! |---|---|---|
//! | `shard.rs` | one shard: values, optimiser, what it has taken; what becomes of an operation | pure |
//! | `ledger.rs` | clocks of workers, batches that are in: what counts once, and who waits for whom | pure |
//! | `optimiser.rs` | SGD, momentum, Adagrad, Adam | pure |
//! | `batches.rs` | which batch goes to whom | pure |
//! | `keys.rs` | which values names of tensors mean, and with which shard they lie | pure, and files |
//! | `plan.rs` | what a coordinator does about a shard | pure |
//! | `held.rs`, `follow.rs` | the shards that this node has, and what the state says of them | act |
//!
//! What is promised: a push is acknowledged when the backup has it, with the optimiser's state and the worker's step; it is applied once,
//! however often it is sent; clocks do not go back, unless primary *and* backup of a shard are lost. Then all shards go back to one
//! checkpoint, under a new layout, and workers go on from there. A primary that was replaced is stopped by its epoch: its backup takes
//! nothing more from it, and it answers no pulls once it does not hear the agreement.

mod backup;
pub mod batches;
mod client;
pub mod coordinate;
pub mod follow;
mod held;
mod intake;
mod keys;
pub mod ledger;
pub mod optimiser;
mod plan;
mod primary;
pub mod shard;
pub mod wire;
pub(crate) mod worker;

pub(crate) use held::Servers;
pub(crate) use keys::Wanted;
