//! The whole mesh under faults.
//!
//! [`world::World`] is a deterministic simulator: the production driver, state and redb log of three
//! to seven nodes, on simulated disks, clocks and links, stepped from a seed. [`faults`] says what
//! goes wrong, [`clients`] what users do meanwhile, [`invariants`] what must hold all along. [`gate`]
//! plants known mistakes and demands that the simulator finds each of them.
//!
//! [`hosts`] is the other half: real processes, real sockets, real disks.

pub mod clients;
pub mod faults;
pub mod gate;
pub mod genesis;
pub mod host;
pub mod hosts;
pub mod invariants;
pub mod linear;
pub mod trace;
pub mod world;
