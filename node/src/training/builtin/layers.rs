//! Convolution, pooling and dense layers, forth and back. Whole batches come in; an example is a row, an image is
//! channel after channel, row after row.
//!
//! A convolution is a copy and a product: the copy (`spread`) lays what lies under each of the filters' nine places into a
//! row of its own, one column for each place of the image. That is done image by image, so that the copy stays in the cache.
//! Back, the same copy is turned for the gradient of the filters, and `gather` adds up what `spread` had laid apart.

use super::product::{Matrix, product};
use super::shape::{Input, KERNEL};

/// A dense layer: `out = input · weightᵀ + bias`.
pub(super) fn dense(input: &[f32], weight: &[f32], bias: &[f32], out: &mut [f32]) {
    let outputs = bias.len();
    let batch = out.len() / outputs;
    for row in out.chunks_exact_mut(outputs) {
        row.copy_from_slice(bias);
    }
    let inputs = weight.len() / outputs;
    let turned = Matrix::new(weight, outputs, inputs).turned();
    product(Matrix::new(input, batch, inputs), turned, true, out);
}

/// Back through a dense layer: from `delta`, the gradient of what went out, to those of weights, biases and, where it is
/// wanted, of what came in.
pub(super) fn dense_back(
    input: &[f32],
    weight: &[f32],
    delta: &[f32],
    weight_gradient: &mut [f32],
    bias_gradient: &mut [f32],
    input_delta: Option<&mut [f32]>,
) {
    let outputs = bias_gradient.len();
    let (batch, inputs) = (delta.len() / outputs, weight.len() / outputs);
    let deltas = Matrix::new(delta, batch, outputs);
    product(deltas.turned(), Matrix::new(input, batch, inputs), false, weight_gradient);
    bias_gradient.fill(0.0);
    for row in delta.chunks_exact(outputs) {
        add(row, bias_gradient);
    }
    if let Some(input_delta) = input_delta {
        product(deltas, Matrix::new(weight, outputs, inputs), false, input_delta);
    }
}

/// The largest of each 2×2, and which of the four it was. What does not fill a square is left out.
pub(super) fn pool(input: Input, images: &[f32], out: &mut [f32], picks: &mut [u8]) {
    let (height, width) = (input.height / 2, input.width / 2);
    let planes = images.chunks_exact(input.height * input.width);
    let outs = out.chunks_exact_mut(height * width).zip(picks.chunks_exact_mut(height * width));
    for (plane, (out, picks)) in planes.zip(outs) {
        let pairs = plane.chunks_exact(2 * input.width);
        let rows = out.chunks_exact_mut(width).zip(picks.chunks_exact_mut(width));
        for (pair, (out, picks)) in pairs.zip(rows) {
            let (upper, lower) = pair.split_at(input.width);
            let squares = upper.chunks_exact(2).zip(lower.chunks_exact(2));
            for ((upper, lower), (out, pick)) in squares.zip(out.iter_mut().zip(picks)) {
                // Written so that it becomes a few selections, without a branch.
                let (above, first) = larger(upper[0], upper[1]);
                let (below, second) = larger(lower[0], lower[1]);
                *out = if below > above { below } else { above };
                *pick = if below > above { 2 + second } else { first };
            }
        }
    }
}

fn larger(left: f32, right: f32) -> (f32, u8) {
    if right > left { (right, 1) } else { (left, 0) }
}

/// Back through [`pool`]: each gradient goes to the value that was picked, the others get none.
pub(super) fn pool_back(input: Input, picks: &[u8], delta: &[f32], input_delta: &mut [f32]) {
    let (height, width) = (input.height / 2, input.width / 2);
    input_delta.fill(0.0);
    let planes = input_delta.chunks_exact_mut(input.height * input.width);
    let deltas = delta.chunks_exact(height * width).zip(picks.chunks_exact(height * width));
    for (plane, (delta, picks)) in planes.zip(deltas) {
        let pairs = plane.chunks_exact_mut(2 * input.width);
        for ((pair, delta), picks) in
            pairs.zip(delta.chunks_exact(width)).zip(picks.chunks_exact(width))
        {
            let (upper, lower) = pair.split_at_mut(input.width);
            let squares = upper.chunks_exact_mut(2).zip(lower.chunks_exact_mut(2));
            for ((upper, lower), (delta, pick)) in squares.zip(delta.iter().zip(picks)) {
                // Four plain selections: a loop over the square would branch.
                let at = |n: u8| if *pick == n { *delta } else { 0.0 };
                (upper[0], upper[1], lower[0], lower[1]) = (at(0), at(1), at(2), at(3));
            }
        }
    }
}

/// A convolution. `columns` and `turned` are room to work in: see [`columns_of`]; `turned` is as long as `weight`.
pub(super) fn conv(
    input: Input,
    images: &[f32],
    weight: &[f32],
    bias: &[f32],
    out: &mut [f32],
    columns: &mut [f32],
    turned: &mut [f32],
) {
    let (taps, places) = (input.channels * KERNEL * KERNEL, places(input));
    let filters = bias.len();
    // Once for the batch: a product reads it for every image, and column by column is how it wants it.
    turn(weight, taps, turned);
    let weight = Matrix::new(turned, taps, filters).turned();
    let columns = &mut columns[..taps * places];
    let all = images.chunks_exact(input.channels * input.height * input.width);
    for (image, out) in all.zip(out.chunks_exact_mut(filters * places)) {
        spread(input, image, columns);
        for (plane, bias) in out.chunks_exact_mut(places).zip(bias) {
            plane.fill(*bias);
        }
        product(weight, Matrix::new(columns, taps, places), true, out);
    }
}

/// Back through a convolution, as [`dense_back`] does it.
#[expect(
    clippy::too_many_arguments,
    reason = "four slices are read, four written, all of other lengths"
)]
pub(super) fn conv_back(
    input: Input,
    images: &[f32],
    weight: &[f32],
    delta: &[f32],
    weight_gradient: &mut [f32],
    bias_gradient: &mut [f32],
    mut input_delta: Option<&mut [f32]>,
    columns: &mut [f32],
) {
    let (taps, places) = (input.channels * KERNEL * KERNEL, places(input));
    let filters = bias_gradient.len();
    let size = input.channels * input.height * input.width;
    let columns = &mut columns[..taps * places];
    bias_gradient.fill(0.0);
    for (n, (image, delta)) in
        images.chunks_exact(size).zip(delta.chunks_exact(filters * places)).enumerate()
    {
        for (plane, gradient) in delta.chunks_exact(places).zip(bias_gradient.iter_mut()) {
            *gradient += sum(plane);
        }
        let deltas = Matrix::new(delta, filters, places);
        spread(input, image, columns);
        let turned = Matrix::new(columns, taps, places).turned();
        product(deltas, turned, n > 0, weight_gradient);
        if let Some(input_delta) = input_delta.as_deref_mut() {
            let turned = Matrix::new(weight, filters, taps).turned();
            product(turned, deltas, false, columns);
            gather(input, columns, &mut input_delta[n * size..(n + 1) * size]);
        }
    }
}

/// How much room a convolution needs for its copy of one image.
pub(super) fn columns_of(input: Input) -> usize {
    input.channels * KERNEL * KERNEL * places(input)
}

/// How many places of an image a filter can be laid on.
fn places(input: Input) -> usize {
    (input.height + 1 - KERNEL) * (input.width + 1 - KERNEL)
}

/// Lays what lies under each part of a filter into a row of its own.
fn spread(input: Input, image: &[f32], columns: &mut [f32]) {
    let width = input.width + 1 - KERNEL;
    let mut rows = columns.chunks_exact_mut(places(input));
    for plane in image.chunks_exact(input.height * input.width) {
        for from in shifts(input) {
            let Some(row) = rows.next() else { return };
            let lines = plane[from..].chunks(input.width);
            for (line, out) in lines.zip(row.chunks_exact_mut(width)) {
                out.copy_from_slice(&line[..width]);
            }
        }
    }
}

/// Adds up what [`spread`] has laid apart.
fn gather(input: Input, columns: &[f32], image: &mut [f32]) {
    let width = input.width + 1 - KERNEL;
    image.fill(0.0);
    let mut rows = columns.chunks_exact(places(input));
    for plane in image.chunks_exact_mut(input.height * input.width) {
        for from in shifts(input) {
            let Some(row) = rows.next() else { return };
            let lines = plane[from..].chunks_mut(input.width);
            for (line, row) in lines.zip(row.chunks_exact(width)) {
                add(row, &mut line[..width]);
            }
        }
    }
}

/// Where in a plane each of a filter's nine parts begins, when the filter lies in the upper left corner.
fn shifts(input: Input) -> impl Iterator<Item = usize> {
    (0..KERNEL).flat_map(move |down| (0..KERNEL).map(move |right| down * input.width + right))
}

/// Rows for columns, value by value. `width` is that of `from`.
fn turn(from: &[f32], width: usize, to: &mut [f32]) {
    let height = from.len() / width;
    for (r, row) in from.chunks_exact(width).enumerate() {
        for (c, value) in row.iter().enumerate() {
            to[c * height + r] = *value;
        }
    }
}

/// The sum of all values. Sixteen sums side by side: one alone would wait for each addition before the next.
fn sum(values: &[f32]) -> f32 {
    let (rows, rest) = values.as_chunks::<16>();
    let mut sums = [0.0; 16];
    for row in rows {
        add(row, &mut sums);
    }
    sums.iter().chain(rest).sum()
}

fn add(from: &[f32], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_convolution_is_what_it_is_on_paper() {
        // Two channels of 3×4; the filter takes the middle of the first, and adds the upper left of the second twice.
        let input = Input { channels: 2, height: 3, width: 4 };
        let images: Vec<f32> = (0..24).map(|n| n as f32).collect();
        let mut weight = [0.0; 18];
        weight[4] = 1.0;
        weight[9] = 2.0;
        let mut out = [0.0; 2];
        let (mut columns, mut turned) = (vec![0.0; columns_of(input)], [0.0; 18]);
        conv(input, &images, &weight, &[0.5], &mut out, &mut columns, &mut turned);
        assert_eq!(out, [5.0 + 24.0 + 0.5, 6.0 + 26.0 + 0.5]);
    }

    #[test]
    fn what_is_laid_apart_and_added_up_counts_how_often_a_place_is_under_a_filter() {
        let input = Input { channels: 1, height: 4, width: 4 };
        let mut columns = vec![0.0; columns_of(input)];
        spread(input, &[1.0; 16], &mut columns);
        let mut image = [7.0; 16];
        gather(input, &columns, &mut image);
        let want = [1, 2, 2, 1, 2, 4, 4, 2, 2, 4, 4, 2, 1, 2, 2, 1].map(|n| n as f32);
        assert_eq!(image, want);
    }

    #[test]
    fn the_largest_of_four_is_picked_and_gets_the_gradient() {
        // 5×5: the last row and column are left out.
        let input = Input { channels: 1, height: 5, width: 5 };
        let mut image = [0.0; 25];
        (image[0], image[3], image[11], image[17], image[24]) = (1.0, 2.0, 3.0, 4.0, 9.0);
        let (mut out, mut picks) = ([0.0; 4], [0; 4]);
        pool(input, &image, &mut out, &mut picks);
        assert_eq!((out, picks), ([1.0, 2.0, 3.0, 4.0], [0, 1, 1, 2]));
        let mut back = [7.0; 25];
        pool_back(input, &picks, &[10.0, 20.0, 30.0, 40.0], &mut back);
        let mut want = [0.0; 25];
        (want[0], want[3], want[11], want[17]) = (10.0, 20.0, 30.0, 40.0);
        assert_eq!(back, want);
    }
}
