//! Sums of numbers by value of a facet column, within the documents of a segment.

use crate::collect::ValueAmounts;
use crate::collect::sums::SumsRequest;
use crate::engine::SearchContext;
use crate::tantivy::doc_set::DocSet;
use crate::tantivy::segments::Segment;
use crate::tantivy::values::{ColumnValues, FacetValues};
use std::sync::Arc;

/// Numbers of values in [`FacetValues`] in ascending order, each with the sum over the documents that have the value.
pub(crate) type OrdinalSums = Vec<(u32, i64)>;

/// Sums each number of the request over `docs`; None if the request is over.
pub(crate) fn sum_segment(
    segment: &Segment,
    values: &FacetValues,
    request: &SumsRequest,
    docs: &DocSet,
    context: &SearchContext,
) -> tantivy::Result<Option<Vec<OrdinalSums>>> {
    let (fast, groups) = (segment.data.reader.fast_fields(), segment.data.column(request.facet));
    let value_count = values.column(request.facet).count();
    let mut all = Vec::with_capacity(request.numbers.len());
    // The numbers are summed one after the other, because each needs memory for all values of the column, of which the
    // segment may have few.
    for number in &request.numbers {
        let amounts = fast.i64(number.name())?;
        let mut sums = ColumnSums::new(value_count);
        let mut is_over = false;
        docs.for_each_block(segment.data.max_doc(), |block| {
            for doc in block {
                let amount = amounts.first(*doc).unwrap_or(0);
                groups.of_doc(*doc).iter().for_each(|value| sums.add(*value, amount));
            }
            is_over = context.is_over();
            !is_over
        });
        if is_over {
            return Ok(None);
        }
        all.push(sums.into_ordinals().collect());
    }
    Ok(Some(all))
}

/// Adds the sums of segments, by the texts of their values.
pub(crate) fn add_by_text<'s>(
    segments: impl Iterator<Item = &'s OrdinalSums>,
    texts: &ColumnValues,
) -> ValueAmounts<i64> {
    let mut sums = ColumnSums::new(texts.count());
    segments.flatten().for_each(|(value, amount)| sums.add(*value, *amount));
    sums.into_ordinals().filter_map(|(value, sum)| Some((Arc::clone(texts.text(value)?), sum))).collect()
}

/// Sums by number of a value; `None` for values that no document has.
struct ColumnSums(Vec<Option<i64>>);

impl ColumnSums {
    fn new(value_count: usize) -> Self {
        ColumnSums(vec![None; value_count])
    }

    /// Adds an amount to the sum of a value.
    fn add(&mut self, value: u32, amount: i64) {
        if let Some(sum) = self.0.get_mut(value as usize) {
            *sum = Some(sum.unwrap_or(0).saturating_add(amount));
        }
    }

    /// The values that documents have, with their sums.
    fn into_ordinals(self) -> impl Iterator<Item = (u32, i64)> {
        (0..).zip(self.0).filter_map(|(value, sum)| Some((value, sum?)))
    }
}
