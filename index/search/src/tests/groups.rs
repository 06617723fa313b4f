//! Groups of the corpus' documents by direct evaluation, and sums of their numbers.

use super::corpus::planning_context;
use crate::FacetCounts;
use crate::collect::facets::FacetField;
use crate::document::Document;
use crate::document::columns::{Facet, Keyword};
use std::collections::{BTreeMap, BTreeSet};

/// Sums of fields, by field and group.
pub(super) type Sums = BTreeMap<String, BTreeMap<String, i64>>;

/// The sums of each field by group.
pub(super) fn sums_by_group(groups: &FacetCounts) -> impl Iterator<Item = (String, BTreeMap<String, i64>)> {
    groups.sums.iter().map(move |sums| {
        let by_group = groups.values.iter().zip(&sums.values).map(|((group, _), sum)| (group.clone(), *sum));
        (sums.field.clone(), by_group.collect())
    })
}

/// Values of a document that are counted, each once.
pub(super) fn values(document: &Document, counted: &FacetField) -> BTreeSet<String> {
    let facet = |facet: Facet| {
        document.facets.iter().filter(move |(column, _)| *column == facet).map(|(_, value)| value.clone())
    };
    let clusters = || {
        let names: BTreeSet<String> = facet(Facet::Cluster).collect();
        planning_context().clusters.into_iter().filter(move |cluster| names.contains(&cluster.name))
    };
    let values: BTreeSet<String> = match counted {
        // In the corpus, no two kinds of different groups have the same name.
        FacetField::Column(Facet::Kind) => {
            facet(Facet::Kind).map(|kind| kind.split('.').next().unwrap_or_default().to_owned()).collect()
        }
        FacetField::Column(column) => facet(*column).collect(),
        FacetField::Region => clusters().map(|cluster| cluster.region).collect(),
        FacetField::Provider => clusters().map(|cluster| cluster.provider).collect(),
        FacetField::Zone => clusters().flat_map(|cluster| cluster.zones).collect(),
        FacetField::Label(key) => {
            let labels = document.keywords.iter().filter(|(word, _)| *word == Keyword::Label);
            let pairs = labels.filter_map(|(_, label)| label.split_once('='));
            pairs.filter(|(label_key, _)| label_key == key).map(|(_, value)| value.to_owned()).collect()
        }
    };
    let is_value = |value: &String| matches!(counted, FacetField::Label(_)) || !value.is_empty();
    values.into_iter().filter(is_value).collect()
}
