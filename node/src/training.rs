//! Training: rounds of a federated job, from the model that stands to the next one; and the parameter server (`server.rs`).
//!
//! ```text
//!   worker (any language, or the built-in trainer)                      the party's own process or container
//!     │  HTTP on a Unix socket, safetensors files in a shared tmpfs     docs/worker-protocol.md
//!   socket.rs       what the worker asks: join, next, submit, metrics …
//!   participant.rs  gets the model, hands it to the worker, sends the update shard by shard, keeps it until it is in a commit
//!     │  Header::Update                                                 wire.rs
//!   aggregate.rs    one shard of one job: spools updates, measures them, sums what it is told to, steps the optimiser
//!     ▲  Ask::Arrived, Ask::Sum, Ask::Keep
//!   federated.rs    the coordinator, under a lease: selects, waits, accepts or refuses, commits, opens the next round
//!     │  CourseRound
//!   state/course.rs what stands
//! ```
//!
//! | file | holds | is |
//! |---|---|---|
//! | `tensors.rs` | safetensors: reading a header without trusting it, values in and out as f32 | pure, and files |
//! | `pack.rs` | an update on the wire: f32, f16, bf16, int8; packing, measuring, adding | pure |
//! | `optimiser.rs` | what the server does with a mean: one fused pass for each strategy; median and trimmed mean | pure |
//! | `shards.rs` | which values belong to which shard | pure |
//! | `straggler.rs` | times, deadline, tiers, selection, staleness | pure |
//! | `privacy.rs` | clipping, noise, the accountant | pure but for the noise |
//! | `board.rs` | TensorBoard's event files | pure |
//! | `round.rs` | what a coordinator does about what it has heard: wait, sum, give up | pure |
//! | `service.rs` | [`Training`]: what the rest of the node reaches all this by | acts |
//! | `pieces.rs` | pieces of models on this node's disk, by their hash; fetched and served | acts |
//! | `metrics.rs` | what an attempt of any job measures: the last values, and how they went | pure, and a file |
//! | `server.rs` | the parameter server: shards with backups, workers that pull and push | see there |
//! | `aggregate.rs`, `federated.rs`, `participant.rs`, `socket.rs` | see above | act |
//! | `builtin/` | the trainer in this binary: logistic regression, MLP, CNN | a process of its own |
//!
//! Values are f32 in memory; a model is one long vector of them, in the order of the tensors in its file. Shards are ranges of
//! that vector. Nothing here trusts a length, a shape or a number that came from elsewhere.

pub mod aggregate;
pub mod board;
pub mod builtin;
pub mod federated;
pub mod metrics;
pub mod optimiser;
pub mod pack;
pub mod participant;
pub mod pieces;
pub mod privacy;
pub mod round;
pub mod server;
pub mod service;
pub mod shards;
pub mod socket;
pub mod straggler;
pub mod tensors;
pub mod wire;

pub use service::Training;
