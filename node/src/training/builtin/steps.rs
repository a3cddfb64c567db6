//! Steps with a parameter server, from `join` to `done`.
//!
//! ```text
//!   next ─► step ─► pull ─► evaluated, now and then ─► the gradient of one batch ─► push ─┐
//!     ▲                                                                                  │
//!     └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Which examples a step is of hangs on its number alone, so that a worker which was started again goes on where it was.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, thread};

use super::client::{Client, Next};
use super::data::Examples;
use super::net::Net;
use super::run::{
    Places, Told, TrainError, first, heard, idle, load, plain, score, shuffled, write,
};
use super::settings::Settings;
use crate::clock::steady;
use crate::training::tensors::{self, Kind, Layout, Tensor};

/// What a file is called that goes to the node.
const OUT: &str = "out.safetensors";

/// Makes steps until there are none.
pub(super) fn take_part(
    mut client: Client,
    settings: &Settings,
    places: &Places,
    train: &Examples,
    held: &Examples,
    tell: &mut dyn FnMut(&Told),
) -> Result<(), TrainError> {
    let about = client.joined().server.clone();
    let task = client.joined().task;
    // Workers with steps of their own walk through the data in ways of their own; batches are the same, whoever has them.
    let own = if about.dynamic { 0 } else { u64::from(task) };
    let mut walk = Walk::new(train.len(), settings.batch, settings.seed.wrapping_add(own));
    let every = about.checkpoint.max(1);
    let mut net: Option<Net> = None;
    let out = places.tensors.join(OUT);
    loop {
        let step = match client.next(None)? {
            Next::Wait | Next::Round { .. } => continue,
            Next::Done => return Ok(client.done()?),
            Next::First => {
                write(&out, &first(settings, train)?)?;
                heard(client.first(OUT))?;
                continue;
            }
            Next::Step { step } => step,
        };
        let began = steady();
        let name = client.pull()?;
        let path = places.tensors.join(plain(&name)?);
        let loaded = load(&path, net.take(), train, held)?;
        let net = net.insert(loaded);
        let is_measured = step % every == 0 && (about.dynamic || task == 0);
        let score = if is_measured { score(net, held) } else { None };
        if let Some(score) = &score {
            heard(client.evaluated(step, score.examples, &score.metrics()))?;
        }
        let worked = steady();
        let order = walk.batch(step);
        let examples = order.len() as u64;
        let loss = write_gradient(&out, net, train, order)?;
        thread::sleep(idle(steady().duration_since(worked), settings.slowdown));
        if !loss.is_finite() {
            return Err(TrainError::Diverged { round: step });
        }
        let metrics = BTreeMap::from([("train-loss", loss)]);
        let pushed = client.push(step, OUT, &metrics)?;
        if is_measured || !pushed.taken {
            let refused = (!pushed.taken).then(|| pushed.why.unwrap_or_default());
            let seconds = steady().duration_since(began).as_secs_f64();
            tell(&Told { round: step, score, examples, train_loss: loss, seconds, refused });
        }
    }
}

/// Writes the gradient of a batch into a file; the mean loss.
fn write_gradient(
    path: &Path,
    net: &mut Net,
    train: &Examples,
    order: &[u32],
) -> Result<f64, TrainError> {
    let tensors = net.tensors().into_iter();
    let tensors = tensors.map(|(name, shape, _)| Tensor { name, kind: Kind::F32, shape });
    let layout = Layout { tensors: tensors.collect() };
    let (loss, gradient) = net.gradient(train, order);
    // It lies in memory: the one before goes first.
    let _ = fs::remove_file(path);
    tensors::write(path, &layout, gradient)
        .map_err(|source| TrainError::Write { path: path.to_owned(), source })?;
    Ok(loss)
}

/// Which examples a step is of.
struct Walk {
    batch: usize,
    seed: u64,
    /// The order of one pass through the data, and which pass it is.
    order: Vec<u32>,
    pass: Option<u64>,
}

impl Walk {
    fn new(examples: usize, batch: usize, seed: u64) -> Self {
        let order = (0..examples).map_while(|n| u32::try_from(n).ok()).collect::<Vec<u32>>();
        let batch = batch.clamp(1, order.len().max(1));
        Self { batch, seed, order, pass: None }
    }

    /// The examples of a step: the next ones of a shuffled pass. What is left at its end is too little for a batch.
    fn batch(&mut self, step: u32) -> &[u32] {
        let in_a_pass = (self.order.len() / self.batch).max(1) as u64;
        let number = u64::from(step.saturating_sub(1));
        let (pass, at) = (number / in_a_pass, (number % in_a_pass) as usize);
        if self.pass != Some(pass) {
            // Always from the same order: so each pass hangs on its number alone.
            self.order.sort_unstable();
            shuffled(&mut self.order, self.seed, pass);
            self.pass = Some(pass);
        }
        let begin = at * self.batch;
        &self.order[begin..(begin + self.batch).min(self.order.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_walk_through_the_data_and_hang_on_their_number_alone() {
        let mut walk = Walk::new(10, 3, 7);
        let mut seen: Vec<u32> = (1..=3).flat_map(|step| walk.batch(step).to_vec()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 9, "no example twice in a pass");
        let fifth = walk.batch(5).to_vec();
        walk.batch(1);
        assert_eq!(walk.batch(5), fifth);
        assert_eq!(Walk::new(10, 3, 7).batch(5), fifth);
        assert_ne!(Walk::new(10, 3, 8).batch(5), fifth);
        assert_eq!(Walk::new(2, 64, 0).batch(9).len(), 2);
    }
}
