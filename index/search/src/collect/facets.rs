//! Facet counts: columns of the text index, properties of the hits' clusters, and values of a label.
//!
//! Region, zones and provider belong to clusters: counts by cluster are summed when the answer is created, so
//! changed properties apply immediately. Values of a label are read from its terms, and from earlier versions if
//! the query includes them.

use crate::FacetCounts;
use crate::collect::terms::{HistoryTermCounts, TermCounts, TermsRequest, count_terms};
use crate::document::columns::{Facet, Keyword};
use crate::execute::{SearchResults, Sources};
use crate::plan::FleetFacts;
use crate::plan::predicate::Match;
use crowsnest_store::Error;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

/// Maximum number of values per facet.
const MAX_VALUES: usize = 30;
/// Maximum number of groups in an answer.
const MAX_GROUPS: usize = 1000;

/// A countable field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FacetField {
    Column(Facet),
    Region,
    Zone,
    Provider,
    /// Values of the label with this key.
    Label(String),
}

impl FacetField {
    /// Parses the name of a field in the query language, or `label:KEY`; None if the field cannot be counted.
    pub fn parse(field: &str) -> Option<Self> {
        match field {
            "region" => return Some(Self::Region),
            "zone" => return Some(Self::Zone),
            "provider" => return Some(Self::Provider),
            "ns" => return Some(Self::Column(Facet::Namespace)),
            _ => {}
        }
        match field.split_once(':') {
            Some(("label", key)) => (!key.is_empty()).then(|| Self::Label(key.to_owned())),
            Some(_) => None,
            None => Self::columns().find(|facet| facet.field() == field).map(Self::Column),
        }
    }

    /// Columns that can be counted. Names are excluded, because there are as many as objects.
    fn columns() -> impl Iterator<Item = Facet> {
        Facet::ALL.iter().copied().filter(|facet| !matches!(facet, Facet::Scope | Facet::Name))
    }

    /// All countable fields, for error messages.
    pub fn names() -> String {
        let columns: Vec<&str> = Self::columns().map(Facet::field).collect();
        format!("{}, region, zone, provider, label:KEY", columns.join(", "))
    }

    pub fn field(&self) -> String {
        match self {
            Self::Column(facet) => facet.field().to_owned(),
            Self::Region => "region".to_owned(),
            Self::Zone => "zone".to_owned(),
            Self::Provider => "provider".to_owned(),
            Self::Label(key) => format!("label:{key}"),
        }
    }

    /// The terms that an engine counts for this field.
    fn terms_request(&self) -> Option<TermsRequest> {
        let Self::Label(key) = self else { return None };
        let prefix = format!("{}={key}=", Keyword::Label.name());
        Some(TermsRequest { keyword: Keyword::Exact, prefix, substring: String::new(), limit: None })
    }

    /// The column that an engine counts for this field.
    fn column(&self) -> Option<Facet> {
        match self {
            Self::Column(facet) => Some(*facet),
            Self::Region | Self::Zone | Self::Provider => Some(Facet::Cluster),
            Self::Label(_) => None,
        }
    }
}

/// Fields to count: the facets, and the field by which hits are grouped.
#[derive(Debug, Clone, Default)]
pub(crate) struct FacetRequest {
    pub facets: Vec<FacetField>,
    pub group: Option<FacetField>,
}

/// Counts of a search.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub facets: Vec<FacetCounts>,
    pub groups: Option<FacetCounts>,
    /// Notice for the caller if counts are incomplete.
    pub notice: Option<String>,
}

impl FacetRequest {
    fn fields(&self) -> impl Iterator<Item = &FacetField> {
        self.facets.iter().chain(&self.group)
    }

    /// The columns that the engine has to count.
    pub fn columns(&self) -> Vec<Facet> {
        let mut columns: Vec<Facet> = self.fields().filter_map(FacetField::column).collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// The terms to count in earlier versions.
    pub fn terms_requests(&self) -> Vec<TermsRequest> {
        self.fields().filter_map(FacetField::terms_request).collect()
    }

    /// Counts the fields. `found` are the results of a search for [`Self::columns`] and [`Self::terms_requests`].
    pub async fn count(&self, sources: &Sources, facts: &FleetFacts, found: &SearchResults) -> Result<Counts, Error> {
        let columns = self.columns();
        let mut counts = Counts::default();
        let mut before = found.terms.iter();
        for (nth, field) in self.fields().enumerate() {
            let column = columns.iter().position(|column| Some(*column) == field.column());
            let column = column.and_then(|column| found.top.facets.get(column)).map(Vec::as_slice);
            let column = column.unwrap_or_default();
            let summed;
            let values = match field.terms_request() {
                Some(wanted) => {
                    let is_incomplete;
                    (summed, is_incomplete) =
                        count_label_values(sources, &found.current_matches, before.next(), &wanted).await?;
                    if is_incomplete {
                        counts.notice = Some(format!("not all values of {} were counted", field.field()));
                    }
                    &summed
                }
                None if *field == FacetField::Column(Facet::Kind) => {
                    summed = shorten_kinds(column);
                    &summed
                }
                None if matches!(field, FacetField::Column(_)) => column,
                None => {
                    summed = sum_by_property(field, facts, column);
                    &summed
                }
            };
            match nth < self.facets.len() {
                true => counts.facets.push(top_values(field.field(), values, MAX_VALUES)),
                false => counts.groups = Some(top_values(field.field(), values, MAX_GROUPS)),
            }
        }
        Ok(counts)
    }
}

/// Sums counts by cluster for a property of clusters. A cluster in several zones counts in each of them.
fn sum_by_property(field: &FacetField, facts: &FleetFacts, column: &[(Arc<str>, u64)]) -> Vec<(Arc<str>, u64)> {
    let by_cluster: HashMap<&str, u64> = column.iter().map(|(cluster, count)| (&**cluster, *count)).collect();
    let mut sums = HashMap::new();
    for cluster in &facts.clusters {
        let count = by_cluster.get(cluster.name.as_str()).copied().unwrap_or_default();
        let mut values = match field {
            FacetField::Region => vec![&cluster.region],
            FacetField::Provider => vec![&cluster.provider],
            _ => cluster.zones.iter().collect(),
        };
        values.sort_unstable();
        values.dedup();
        for value in values.into_iter().filter(|value| !value.is_empty() && count > 0) {
            *sums.entry(Arc::from(value.as_str())).or_default() += count;
        }
    }
    sums.into_iter().collect()
}

/// Omits the groups of kinds, except where several kinds have the same name.
pub(crate) fn shorten_kinds(counts: &[(Arc<str>, u64)]) -> Vec<(Arc<str>, u64)> {
    fn name(kind: &str) -> &str {
        kind.split_once('.').map_or(kind, |(name, _)| name)
    }
    let mut namesakes: HashMap<&str, usize> = HashMap::new();
    counts.iter().for_each(|(kind, _)| *namesakes.entry(name(kind)).or_default() += 1);
    let shown = |kind: &Arc<str>| match namesakes.get(name(kind)) {
        Some(1) => Arc::from(name(kind)),
        _ => Arc::clone(kind),
    };
    counts.iter().map(|(kind, count)| (shown(kind), *count)).collect()
}

/// Counts of a label's values in their original case, and true if some values were not counted.
async fn count_label_values(
    sources: &Sources,
    current_matches: &Match,
    before: Option<&HistoryTermCounts>,
    wanted: &TermsRequest,
) -> Result<(Vec<(Arc<str>, u64)>, bool), Error> {
    let TermCounts { counts, incomplete } = count_terms(sources, current_matches, before, wanted).await?;
    let value = |(term, count): (String, u64)| Some((Arc::from(term.strip_prefix(&wanted.prefix)?), count));
    Ok((counts.into_iter().filter_map(value).collect(), incomplete))
}

/// The most frequent values.
fn top_values(field: String, counts: &[(Arc<str>, u64)], most: usize) -> FacetCounts {
    let values = smallest(counts.iter().map(|(value, count)| (Reverse(*count), value)), most);
    let values: Vec<(String, u64)> =
        values.into_iter().map(|(Reverse(count), value)| (value.to_string(), count)).collect();
    let more = counts.len().saturating_sub(values.len()) as u64;
    FacetCounts { field, values, more }
}

/// The `most` smallest items, in ascending order. Keeps only that many items in memory.
pub(crate) fn smallest<T: Ord>(all: impl Iterator<Item = T>, most: usize) -> Vec<T> {
    let mut kept = BinaryHeap::with_capacity(most + 1);
    for value in all {
        if kept.len() < most {
            kept.push(value);
        } else if let Some(mut worst) = kept.peek_mut()
            && value < *worst
        {
            *worst = value;
        }
    }
    kept.into_sorted_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ClusterFacts;
    use rstest::rstest;

    #[test]
    fn kinds_of_one_name_are_shown_with_their_group() {
        let counts =
            ["Deployment.apps", "Deployment.x.io", "Pod", "Issuer.cert-manager.io"].map(|kind| (kind.into(), 1));
        let shown = shorten_kinds(&counts);
        let kinds: Vec<&str> = shown.iter().map(|(kind, _)| &**kind).collect();
        assert_eq!(kinds, ["Deployment.apps", "Deployment.x.io", "Pod", "Issuer"]);
    }

    #[rstest]
    #[case("cluster", Some(FacetField::Column(Facet::Cluster)))]
    #[case("label", Some(FacetField::Column(Facet::LabelKey)))]
    #[case("label:acme.io/size", Some(FacetField::Label("acme.io/size".into())))]
    #[case("zone", Some(FacetField::Zone))]
    #[case("label:", None)]
    #[case("name", None)]
    #[case("policy", None)]
    fn countable_fields_have_names(#[case] name: &str, #[case] expected: Option<FacetField>) {
        let field = FacetField::parse(name);
        assert_eq!(field, expected);
        assert!(field.is_none_or(|field| field.field() == name));
    }

    #[test]
    fn clusters_are_summed() {
        let cluster = |name: &str, region: &str, zones: &[&str]| ClusterFacts {
            name: name.into(),
            region: region.into(),
            zones: zones.iter().map(|zone| (*zone).to_owned()).collect(),
            ..ClusterFacts::default()
        };
        let clusters = vec![
            cluster("a", "eu", &["x", "y", "x"]),
            cluster("b", "eu", &["y"]),
            cluster("c", "us", &[]),
            cluster("d", "", &[]),
        ];
        let facts = FleetFacts { clusters, ..FleetFacts::default() };
        let column = [("a".into(), 3), ("b".into(), 4), ("d".into(), 5)];
        let top = |field: &FacetField| top_values(field.field(), &sum_by_property(field, &facts, &column), 1);
        assert_eq!((top(&FacetField::Region).values, top(&FacetField::Region).more), (vec![("eu".to_owned(), 7)], 0));
        assert_eq!((top(&FacetField::Zone).values, top(&FacetField::Zone).more), (vec![("y".to_owned(), 7)], 1));
        assert_eq!(top(&FacetField::Provider).values, []);
    }
}
