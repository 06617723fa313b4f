//! Sums of numbers per group of hits, such as the requested CPU and memory of the pods of each node.
//!
//! An engine sums numbers per value of a column. For region, zone and provider, it sums by cluster, and the response adds the
//! sums of the clusters. Sums for the values of a label are those of its terms ([`super::terms`]). Sums are limited to `i64`.

use crate::collect::ValueAmounts;
use crate::document::Document;
use crate::document::columns::{Facet, Number};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Numbers to sum for each value of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SumsRequest {
    /// One of the counted facets.
    pub facet: Facet,
    /// Amounts ([`Number::is_amount`]).
    pub numbers: Vec<Number>,
}

/// Parses the name of an amount in the query language; None if the field cannot be summed.
pub(crate) fn parse_amount(field: &str) -> Option<Number> {
    amounts().find(|number| number.name() == field)
}

/// Names of the fields that can be summed, for messages and documentation.
pub fn amount_names() -> String {
    amounts().map(Number::name).collect::<Vec<_>>().join(", ")
}

/// Fields that can be summed.
pub(crate) fn amounts() -> impl Iterator<Item = Number> {
    Number::ALL.iter().copied().filter(|number| number.is_amount())
}

/// The amount of a document; 0 if it lacks the number.
pub(crate) fn amount_of(document: &Document, number: Number) -> i64 {
    document.numbers.iter().find(|(column, _)| *column == number).map_or(0, |(_, amount)| *amount)
}

impl SumsRequest {
    /// The sums for each number over these documents. A document counts once for each distinct value of the facet, with 0 if
    /// it lacks the number.
    pub fn sum_documents<'d>(&self, documents: impl Iterator<Item = &'d Document>) -> Vec<ValueAmounts<i64>> {
        let mut sums = vec![HashMap::<Arc<str>, i64>::new(); self.numbers.len()];
        for document in documents {
            let facets = document.facets.iter().filter(|(facet, _)| *facet == self.facet);
            let values: BTreeSet<&str> = facets.map(|(_, value)| value.as_str()).collect();
            for (sums, number) in sums.iter_mut().zip(&self.numbers) {
                let amount = amount_of(document, *number);
                for value in &values {
                    let sum = sums.entry(Arc::from(*value)).or_default();
                    *sum = sum.saturating_add(amount);
                }
            }
        }
        sums.into_iter().map(|sums| sums.into_iter().collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("cpu.req", Some(Number::CpuRequest))]
    #[case("mem.limit", Some(Number::MemoryLimit))]
    #[case("restarts", Some(Number::Restarts))]
    #[case::time("created", None)]
    #[case::code("exit", None)]
    #[case::text("status", None)]
    #[case::unknown("cpu", None)]
    fn amounts_can_be_summed(#[case] field: &str, #[case] expected: Option<Number>) {
        assert_eq!(parse_amount(field), expected);
        assert_eq!(amount_names().split(", ").any(|name| name == field), expected.is_some());
    }

    #[test]
    fn documents_are_summed_by_value() {
        let document = |images: &[&str], restarts: Option<i64>| {
            let mut document = Document::default();
            document.facets.extend(images.iter().map(|image| (Facet::Image, (*image).to_owned())));
            document.numbers.extend(restarts.map(|restarts| (Number::Restarts, restarts)));
            document
        };
        let documents = [document(&["a", "b", "a"], Some(2)), document(&["b"], Some(3)), document(&["c"], None)];
        let request = SumsRequest { facet: Facet::Image, numbers: vec![Number::Restarts, Number::Count] };
        let mut sums = request.sum_documents(documents.iter());
        sums.iter_mut().for_each(|sums| sums.sort());
        let expected =
            |sums: [i64; 3]| -> ValueAmounts<i64> { ["a", "b", "c"].map(Arc::from).into_iter().zip(sums).collect() };
        assert_eq!(sums, [expected([2, 5, 0]), expected([0, 0, 0])]);
    }
}
