//! Gradients against differences, learning, and what a round begins with.

use super::super::shape::{Input, Kind};
use super::*;

fn row(width: usize) -> Input {
    Input { channels: 1, height: 1, width }
}

fn mlp(hidden: &[usize]) -> Kind {
    Kind::Mlp { hidden: hidden.to_vec() }
}

fn cnn(filters: &[usize], width: usize) -> Kind {
    Kind::Cnn { filters: filters.to_vec(), width }
}

/// Examples without any sense.
fn noise(input: Input, classes: usize, count: usize) -> Examples {
    let mut random = fastrand::Rng::with_seed(3);
    let values = count * input.values().unwrap();
    Examples {
        inputs: (0..values).map(|_| normal(&mut random) as f32).collect(),
        shape: input,
        labels: (0..count).map(|n| (n % classes) as u8).collect(),
        classes,
    }
}

/// Three heaps of points that lie far apart.
fn heaps(count: usize) -> Examples {
    let mut random = fastrand::Rng::with_seed(5);
    let (mut inputs, mut labels) = (Vec::new(), Vec::new());
    for n in 0..count {
        let (x, y) = [(0.0, 2.0), (2.0, -1.0), (-2.0, -1.0)][n % 3];
        let mut near = |at: f64| (at + 0.3 * normal(&mut random)) as f32;
        inputs.extend([near(x), near(y)]);
        labels.push((n % 3) as u8);
    }
    Examples { inputs, shape: row(2), labels, classes: 3 }
}

/// Compares every part of the gradient with what a small step makes of the loss.
fn check_gradient(kind: Kind, input: Input) {
    let data = noise(input, 3, 4);
    let mut net = Net::new(&Shape::new(kind.clone(), input, 3).unwrap(), 11);
    // So that no gradient of a bias is the same as another.
    for (n, weight) in net.weights.iter_mut().enumerate() {
        *weight += 0.01 * ((n % 7) as f32 - 3.0);
    }
    let (_, gradient) = gradient_on(&mut net, &data);
    assert!(gradient.iter().any(|part| part.abs() > 0.01), "{kind:?} has a gradient");
    let (mut apart, mut length) = (0.0, 0.0);
    for (n, part) in gradient.iter().enumerate() {
        let weight = net.weights[n];
        let step = 1e-3;
        let mut loss_at = |weight: f32| {
            net.weights[n] = weight;
            net.evaluate(&data).1
        };
        let (above, below) = (loss_at(weight + step), loss_at(weight - step));
        net.weights[n] = weight;
        let wanted = (above - below) / f64::from(2.0 * step);
        apart += (f64::from(*part) - wanted).powi(2);
        length += wanted.powi(2);
    }
    // f32 has seven digits, and a step across the corner of a ReLU is seen, too.
    assert!(apart.sqrt() < 0.01 * length.sqrt(), "{kind:?}: {} of {}", apart.sqrt(), length.sqrt());
}

/// The loss on all of the data and its gradient, without a step.
fn gradient_on(net: &mut Net, data: &Examples) -> (f64, Vec<f32>) {
    let all: Vec<u32> = (0..data.len() as u32).collect();
    let (loss, gradient) = net.gradient(data, &all);
    (loss, gradient.to_vec())
}

#[test]
fn every_layer_knows_its_gradient() {
    check_gradient(Kind::Logistic, row(5));
    check_gradient(mlp(&[6]), row(5));
    check_gradient(mlp(&[6, 4]), row(3));
    check_gradient(cnn(&[2], 3), Input { channels: 2, height: 6, width: 5 });
    check_gradient(cnn(&[2, 3], 4), Input { channels: 1, height: 8, width: 8 });
    check_gradient(cnn(&[2, 3, 2], 4), Input { channels: 2, height: 9, width: 11 });
}

#[test]
fn heaps_that_lie_apart_are_told_apart() {
    let (data, fresh) = (heaps(300), heaps(330));
    let order: Vec<u32> = (0..300).collect();
    for kind in [Kind::Logistic, mlp(&[8])] {
        let mut net = Net::new(&Shape::new(kind, row(2), 3).unwrap(), 1);
        let first = net.train(&data, &order, 10, 0.1, 0.9, 0.0);
        let mut last = first;
        for _ in 0..10 {
            last = net.train(&data, &order, 10, 0.1, 0.9, 0.0);
        }
        assert!(last < first / 4.0, "{first} {last}");
        assert_eq!(net.evaluate(&fresh).0, 1.0);
    }
}

#[test]
fn a_convolution_learns_where_a_line_goes() {
    // Upright or level, anywhere, on some noise.
    let input = Input { channels: 1, height: 10, width: 10 };
    let mut data = noise(input, 2, 200);
    for (n, image) in data.inputs.chunks_exact_mut(100).enumerate() {
        let at = n / 2 % 10;
        for step in 0..10 {
            image[if n % 2 == 0 { at * 10 + step } else { step * 10 + at }] += 4.0;
        }
    }
    let mut net = Net::new(&Shape::new(cnn(&[4, 4], 8), input, 2).unwrap(), 1);
    let order: Vec<u32> = (0..200).collect();
    for _ in 0..10 {
        net.train(&data, &order, 10, 0.02, 0.9, 0.0);
    }
    assert_eq!(net.evaluate(&data).0, 1.0);
}

#[test]
fn the_same_seed_gives_the_same_weights_and_another_one_others() {
    let input = Input { channels: 1, height: 6, width: 6 };
    let data = noise(input, 3, 20);
    let shape = Shape::new(cnn(&[2], 4), input, 3).unwrap();
    let trained = |seed| {
        let mut net = Net::new(&shape, seed);
        let loss = net.train(&data, &(0..20).collect::<Vec<u32>>(), 6, 0.05, 0.9, 0.1);
        (loss, net.weights)
    };
    assert_eq!(trained(1), trained(1));
    assert_ne!(trained(1).1, trained(2).1);
}

#[test]
fn the_first_weights_are_spread_as_he_says() {
    let net = Net::new(&Shape::new(mlp(&[400]), row(200), 10).unwrap(), 1);
    let weights = &net.weights[..400 * 200];
    let mean = weights.iter().sum::<f32>() / weights.len() as f32;
    let spread = weights.iter().map(|weight| weight * weight).sum::<f32>() / weights.len() as f32;
    assert!(mean.abs() < 0.002, "{mean}");
    assert!((spread / (2.0 / 200.0) - 1.0).abs() < 0.05, "{spread}");
    assert!(net.weights[400 * 200..400 * 201].iter().all(|bias| *bias == 0.0));
}

#[test]
fn a_step_is_what_the_formula_says() {
    let data = noise(row(3), 2, 4);
    let mut net = Net::new(&Shape::new(Kind::Logistic, row(3), 2).unwrap(), 1);
    let began = net.weights.clone();
    let order = [0, 1, 2, 3];
    let sgd = Sgd { lr: 0.1, momentum: 0.5, decay: 0.01, mu: 2.0 };
    let mut velocity = vec![0.0; began.len()];
    for _ in 0..3 {
        let (_, gradient) = gradient_on(&mut net.clone(), &data);
        let mut wanted = net.weights.clone();
        for n in 0..began.len() {
            let drawn = gradient[n] + 0.01 * wanted[n] + 2.0 * (wanted[n] - began[n]);
            velocity[n] = 0.5 * velocity[n] + drawn;
            wanted[n] -= 0.1 * velocity[n];
        }
        net.train_by(&data, &order, 4, sgd);
        for (found, wanted) in net.weights.iter().zip(&wanted) {
            assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
        }
    }
}

#[test]
fn who_is_drawn_back_stays_nearer_and_a_new_round_draws_elsewhere() {
    let data = heaps(60);
    let order: Vec<u32> = (0..60).collect();
    let shape = Shape::new(mlp(&[8]), row(2), 3).unwrap();
    let far = |mu| {
        let mut net = Net::new(&shape, 1);
        let began = net.weights.clone();
        net.train(&data, &order, 10, 0.1, 0.0, mu);
        let apart = net.weights.iter().zip(&began).map(|(now, then)| (now - then).powi(2));
        (apart.sum::<f32>().sqrt(), net)
    };
    let ((free, _), (drawn, mut net)) = (far(0.0), far(5.0));
    assert!(drawn < free / 2.0, "{drawn} {free}");
    // The same again without a new round is drawn to the old place, with one to the new place.
    let mut begun = net.clone();
    begun.begin();
    net.train(&data, &order, 10, 0.1, 0.0, 5.0);
    begun.train(&data, &order, 10, 0.1, 0.0, 5.0);
    assert_ne!(net.weights, begun.weights);
}

#[test]
fn a_round_begins_without_velocity() {
    let data = heaps(60);
    let order: Vec<u32> = (0..60).collect();
    let first = Net::new(&Shape::new(mlp(&[8]), row(2), 3).unwrap(), 1);
    let (mut net, mut again) = (first.clone(), first.clone());
    again.train(&data, &order, 10, 0.1, 0.9, 0.5);
    let tensors = first.tensors();
    again
        .load(tensors.iter().map(|(name, shape, values)| (name.as_str(), &shape[..], *values)))
        .unwrap();
    net.train(&data, &order, 10, 0.1, 0.9, 0.5);
    again.train(&data, &order, 10, 0.1, 0.9, 0.5);
    assert_eq!(net.weights, again.weights);
}

#[test]
fn a_smaller_last_batch_counts_as_much_as_it_has() {
    let data = heaps(25);
    let mut net = Net::new(&Shape::new(mlp(&[8]), row(2), 3).unwrap(), 1);
    let (_, wanted) = net.evaluate(&data);
    // Without a step, the mean over batches of 10, 10 and 5 is the mean of all.
    let found = net.train(&data, &(0..25).collect::<Vec<u32>>(), 10, 0.0, 0.0, 0.0);
    assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
    assert_eq!(net.train(&data, &[], 10, 0.1, 0.0, 0.0), 0.0);
}

#[test]
fn tensors_go_out_and_come_in_by_name() {
    let input = Input { channels: 1, height: 8, width: 8 };
    let shape = Shape::new(cnn(&[2, 3], 4), input, 3).unwrap();
    let (from, mut to) = (Net::new(&shape, 1), Net::new(&shape, 2));
    let mut tensors = from.tensors();
    tensors.reverse();
    assert_ne!(from.weights, to.weights);
    to.load(tensors.iter().map(|(name, shape, values)| (name.as_str(), &shape[..], *values)))
        .unwrap();
    assert_eq!(from.weights, to.weights);
}

#[test]
fn tensors_that_do_not_fit_are_named_and_nothing_is_changed() {
    let shape = Shape::new(Kind::Logistic, row(2), 3).unwrap();
    let mut net = Net::new(&shape, 1);
    let before = net.weights.clone();
    let (weight, bias) = ([9.0; 6], [9.0; 3]);
    let right = [("fc1.weight", &[3, 2][..], &weight[..]), ("fc1.bias", &[3], &bias)];
    let wrong = |n: usize, with| {
        let mut tensors = right.to_vec();
        tensors[n] = with;
        tensors
    };
    let missing = net.load([right[0]]).unwrap_err();
    assert_eq!(missing, LoadError::Missing { name: "fc1.bias".into() });
    let turned = net.load(wrong(0, ("fc1.weight", &[2, 3], &weight))).unwrap_err();
    assert!(matches!(turned, LoadError::Shape { .. }), "{turned}");
    let short = net.load(wrong(1, ("fc1.bias", &[3], &bias[..2]))).unwrap_err();
    assert!(matches!(short, LoadError::Shape { .. }), "{short}");
    for name in ["fc2.bias", "fc1.bias"] {
        let more = [right[0], right[1], (name, &[3], &bias)];
        let unknown = net.load(more).unwrap_err();
        assert_eq!(unknown, LoadError::Unknown { name: name.into() });
    }
    assert_eq!(net.weights, before);
    net.load(right).unwrap();
    assert_eq!(net.weights, [9.0; 9]);
}

#[test]
fn data_that_does_not_fit_is_found_out() {
    let net = Net::new(&Shape::new(Kind::Logistic, row(2), 2).unwrap(), 1);
    let wide = noise(row(3), 2, 2);
    assert_eq!(net.fits(&wide), Err(FitError::Width { found: 3, wanted: 2 }));
    assert_eq!(net.fits(&heaps(3)), Err(FitError::Label { largest: 2, last: 1 }));
    assert_eq!(net.fits(&heaps(2)), Ok(()));
}

#[test]
fn weights_that_are_no_numbers_are_seen_and_know_nothing() {
    let mut net = Net::new(&Shape::new(Kind::Logistic, row(2), 3).unwrap(), 1);
    assert!(net.is_finite());
    net.weights[3] = f32::NAN;
    assert!(!net.is_finite());
    net.weights.fill(f32::NAN);
    assert_eq!(net.evaluate(&heaps(9)).0, 0.0);
}
