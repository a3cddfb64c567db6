//! What members tell one another about themselves: where they are, what they have, how busy they are.
//!
//! Awareness is advice. It may be stale, and its author may lie about itself; it never evicts a
//! member and never decides who may do what. It owns the records, the view of them and the
//! measuring of this machine; sending and receiving is left to the overlay and to whoever calls.
//!
//! | read | for |
//! |---|---|
//! | [`record`], [`bounded`] | what a node says about itself |
//! | [`signed`] | the same as signed bytes |
//! | [`publish`] | when it says it |
//! | [`view`] | what was heard from others, and how to pull what was missed |
//! | [`hub`] | the view, shared with the whole process |
//! | [`resources`], [`network`], [`gpu`] | measuring this machine |

pub mod bounded;
mod cgroup;
pub mod gpu;
pub mod hub;
pub mod network;
pub mod publish;
pub mod record;
pub mod resources;
pub mod signed;
pub mod view;
