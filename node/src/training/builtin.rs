//! The trainer in this binary: `mesh train MODEL`, a process like any other, which speaks the worker protocol.
//!
//! | file | holds | is |
//! |---|---|---|
//! | `shape.rs` | what a network looks like: its layers, the names and shapes of its tensors | pure |
//! | `product.rs` | products of matrices; the only file here that calls what is not checked by the compiler | pure |
//! | `layers.rs` | convolution, pooling, dense: forth and back | pure |
//! | `net.rs` | a network with its weights: trained, measured, read and written | pure |
//! | `data.rs` | examples out of files that nobody vouches for: idx, CSV, npy | files |
//! | `settings.rs` | what a job's parameters say | pure |
//! | `client.rs` | the worker's side of the protocol | a socket |
//! | `steps.rs` | steps with a parameter server | acts |
//! | `run.rs` | rounds from `join` to `done`; also training alone, and measuring a model | acts |
//!
//! Everything is f32 on the CPU. A network is one vector of weights, in the order of its tensors; the gradient and the
//! velocity are vectors beside it, so that a step is one pass over all three.

pub mod client;
pub mod data;
mod layers;
pub mod net;
mod product;
pub mod run;
pub mod settings;
pub mod shape;
mod steps;
