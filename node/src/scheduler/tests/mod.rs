//! Situations for each rule, then random worlds.

mod explaining;
mod ordering;
mod placing;
mod preempting;
mod published;
mod scene;
mod worlds;
