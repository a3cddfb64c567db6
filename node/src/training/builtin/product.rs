//! Products of matrices.

/// A matrix in a slice: the value in row `r` and column `c` stands at `r * down + c * right`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    down: usize,
    right: usize,
}

impl<'a> Matrix<'a> {
    /// Row after row. All values are there: checked here, and relied upon by [`product`].
    pub(super) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(rows.checked_mul(columns), Some(values.len()), "a matrix has all its values");
        Self { values, rows, columns, down: columns, right: 1 }
    }

    /// Rows for columns. No value is moved.
    pub(super) fn turned(self) -> Self {
        let Self { values, rows, columns, down, right } = self;
        Self { values, rows: columns, columns: rows, down: right, right: down }
    }
}

/// `out = left · right`, row after row; with `add` it is added to what is there.
pub(super) fn product(left: Matrix<'_>, right: Matrix<'_>, add: bool, out: &mut [f32]) {
    let (rows, inner, columns) = (left.rows, left.columns, right.columns);
    assert_eq!(inner, right.rows, "the one has as many columns as the other has rows");
    assert_eq!(rows.checked_mul(columns), Some(out.len()), "there is room for all of it");
    let stride = |step: usize| isize::try_from(step).expect("a slice is no longer than isize::MAX");
    let keep = if add { 1.0 } else { 0.0 };
    #[expect(unsafe_code, reason = "matrixmultiply takes pointers; this is its only caller")]
    // SAFETY: `Matrix::new` has checked that rows × columns values are in the slice, and `turned` changes only how they
    // are counted, so every index that the strides give lies in it. `out` has rows × columns values, and is borrowed alone.
    unsafe {
        matrixmultiply::sgemm(
            rows,
            inner,
            columns,
            1.0,
            left.values.as_ptr(),
            stride(left.down),
            stride(left.right),
            right.values.as_ptr(),
            stride(right.down),
            stride(right.right),
            keep,
            out.as_mut_ptr(),
            stride(columns),
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 2 3
    /// 4 5 6
    const SIX: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];

    #[test]
    fn a_product_is_what_it_is_on_paper_turned_or_not() {
        let six = Matrix::new(&SIX, 2, 3);
        let mut small = [0.0; 4];
        product(six, six.turned(), false, &mut small);
        assert_eq!(small, [14.0, 32.0, 32.0, 77.0]);
        product(six, six.turned(), true, &mut small);
        assert_eq!(small, [28.0, 64.0, 64.0, 154.0]);
        let mut large = [0.0; 9];
        product(six.turned(), six, false, &mut large);
        assert_eq!(large, [17.0, 22.0, 27.0, 22.0, 29.0, 36.0, 27.0, 36.0, 45.0]);
    }

    #[test]
    fn what_was_there_is_not_read_unless_it_is_added_to() {
        let mut out = [f32::NAN];
        product(Matrix::new(&[2.0], 1, 1), Matrix::new(&[3.0], 1, 1), false, &mut out);
        assert_eq!(out, [6.0]);
    }

    #[test]
    #[should_panic(expected = "all its values")]
    fn a_matrix_that_is_larger_than_its_slice_cannot_be_made() {
        Matrix::new(&SIX, 3, 3);
    }
}
