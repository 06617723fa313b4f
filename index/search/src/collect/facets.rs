//! Facet counts: columns of the text index, properties of the hits' clusters, and values of a label.
//!
//! Region, zones and provider belong to clusters: counts by cluster are summed when the response is created, so
//! changed properties apply immediately. Values of a label are read from its terms, and from earlier versions if
//! the query includes them.

use crate::collect::ValueAmounts;
use crate::collect::sums::SumsRequest;
use crate::collect::terms::{HistoryTermCounts, TermCounts, TermsRequest, count_terms};
use crate::document::columns::{Facet, Keyword, Number};
use crate::execute::{SearchResults, Sources};
use crate::plan::PlanningContext;
use crate::plan::predicate::Match;
use crate::{FacetCounts, GroupSums};
use crowsnest_store::Error;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

/// Maximum number of values per facet.
const MAX_VALUES: usize = 30;
/// Maximum number of groups in a response.
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

    /// The terms that an engine counts for this field, with the numbers to sum for each of them.
    fn terms_request(&self, sums: &[Number]) -> Option<TermsRequest> {
        let Self::Label(key) = self else { return None };
        let prefix = format!("{}={key}=", Keyword::Label.name());
        let (keyword, substring, sums) = (Keyword::Exact, String::new(), sums.to_vec());
        Some(TermsRequest { keyword, prefix, substring, limit: None, sums })
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

/// Fields to count: the facets, and the field by which hits are grouped, with the numbers to sum per group.
#[derive(Debug, Clone, Default)]
pub(crate) struct FacetRequest {
    pub facets: Vec<FacetField>,
    pub group: Option<FacetField>,
    /// Numbers to sum for each group; ignored if there are no groups.
    pub sums: Vec<Number>,
}

/// Counts of a search.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub facets: Vec<FacetCounts>,
    pub groups: Option<FacetCounts>,
    /// True if some values of a label were not counted.
    pub incomplete: bool,
    /// Notices for the caller: counts are incomplete, or sums rounded.
    pub notices: Vec<String>,
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

    /// The numbers that the engine has to sum by a column.
    pub fn sums_request(&self) -> Option<SumsRequest> {
        let facet = self.group.as_ref()?.column()?;
        (!self.sums.is_empty()).then(|| SumsRequest { facet, numbers: self.sums.clone() })
    }

    /// The terms to count in earlier versions.
    pub fn terms_requests(&self) -> Vec<TermsRequest> {
        let facets = self.facets.iter().filter_map(|field| field.terms_request(&[]));
        facets.chain(self.group.as_ref().and_then(|group| group.terms_request(&self.sums))).collect()
    }

    /// Counts the fields. `found` are the results of a search for [`Self::columns`], [`Self::sums_request`] and
    /// [`Self::terms_requests`].
    pub async fn count(
        &self,
        sources: &Sources,
        planning_context: &PlanningContext,
        found: &SearchResults,
    ) -> Result<Counts, Error> {
        let columns = self.columns();
        let mut counts = Counts::default();
        let mut before = found.terms.iter();
        for (nth, field) in self.fields().enumerate() {
            let is_group = nth == self.facets.len();
            let column = columns.iter().position(|column| Some(*column) == field.column());
            let column = column.and_then(|column| found.top.facets.get(column)).map(Vec::as_slice);
            let column = column.unwrap_or_default();
            let converted;
            let mut label_sums = None;
            let values = match field.terms_request(if is_group { self.sums.as_slice() } else { &[] }) {
                Some(terms_request) => {
                    let label =
                        count_label_values(sources, &found.current_matches, before.next(), &terms_request).await?;
                    if label.incomplete {
                        counts.incomplete = true;
                        counts.notices.push(format!("not all values of {} were counted", field.field()));
                    }
                    counts.notices.extend(label.notices);
                    converted = label.counts;
                    label_sums = Some(label.sums);
                    &converted
                }
                None if *field == FacetField::Column(Facet::Kind) => {
                    converted = shorten_kinds(column);
                    &converted
                }
                None if matches!(field, FacetField::Column(_)) => column,
                None => {
                    converted = sum_by_property(field, planning_context, column, u64::saturating_add);
                    &converted
                }
            };
            match is_group {
                true => {
                    let mut groups = top_values(field.field(), values, MAX_GROUPS);
                    let sums = label_sums.as_deref().unwrap_or(&found.top.sums);
                    groups.sums = self.sum_groups(field, planning_context, sums, &groups.values);
                    counts.groups = Some(groups);
                }
                false => counts.facets.push(top_values(field.field(), values, MAX_VALUES)),
            }
        }
        Ok(counts)
    }

    /// Sums for the listed groups, in their order. `sums` are those of the engine, by column or by value of the label.
    fn sum_groups(
        &self,
        field: &FacetField,
        planning_context: &PlanningContext,
        sums: &[ValueAmounts<i64>],
        groups: &[(String, u64)],
    ) -> Vec<GroupSums> {
        let sum = |(number, sums): (&Number, &ValueAmounts<i64>)| {
            let sums = match field {
                FacetField::Column(Facet::Kind) => shorten_kinds(sums),
                FacetField::Column(_) | FacetField::Label(_) => sums.clone(),
                FacetField::Region | FacetField::Zone | FacetField::Provider => {
                    sum_by_property(field, planning_context, sums, i64::saturating_add)
                }
            };
            let by_group: HashMap<&str, i64> = sums.iter().map(|(value, sum)| (&**value, *sum)).collect();
            let values = groups.iter().map(|(group, _)| by_group.get(group.as_str()).copied().unwrap_or_default());
            GroupSums { field: number.name().to_owned(), values: values.collect() }
        };
        self.sums.iter().zip(sums).map(sum).collect()
    }
}

/// Sums amounts by cluster for a property of clusters. A cluster in several zones counts in each of them.
fn sum_by_property<T: Copy + Default + PartialEq>(
    field: &FacetField,
    planning_context: &PlanningContext,
    column: &[(Arc<str>, T)],
    add_amounts: fn(T, T) -> T,
) -> ValueAmounts<T> {
    let by_cluster: HashMap<&str, T> = column.iter().map(|(cluster, amount)| (&**cluster, *amount)).collect();
    let mut sums = HashMap::new();
    for cluster in &planning_context.clusters {
        let amount = by_cluster.get(cluster.name.as_str()).copied().unwrap_or_default();
        let mut values = match field {
            FacetField::Region => vec![&cluster.region],
            FacetField::Provider => vec![&cluster.provider],
            _ => cluster.zones.iter().collect(),
        };
        values.sort_unstable();
        values.dedup();
        for value in values.into_iter().filter(|value| !value.is_empty() && amount != T::default()) {
            let sum: &mut T = sums.entry(Arc::from(value.as_str())).or_default();
            *sum = add_amounts(*sum, amount);
        }
    }
    sums.into_iter().collect()
}

/// Omits the groups of kinds, except where several kinds have the same name.
pub(crate) fn shorten_kinds<T: Copy>(counts: &[(Arc<str>, T)]) -> ValueAmounts<T> {
    fn name(kind: &str) -> &str {
        kind.split_once('.').map_or(kind, |(name, _)| name)
    }
    let mut namesakes: HashMap<&str, usize> = HashMap::new();
    counts.iter().for_each(|(kind, _)| *namesakes.entry(name(kind)).or_default() += 1);
    let short_name = |kind: &Arc<str>| match namesakes.get(name(kind)) {
        Some(1) => Arc::from(name(kind)),
        _ => Arc::clone(kind),
    };
    counts.iter().map(|(kind, count)| (short_name(kind), *count)).collect()
}

/// Values of a label in their original case.
struct LabelValues {
    counts: ValueAmounts<u64>,
    /// For each number of the request, the sums for the values.
    sums: Vec<ValueAmounts<i64>>,
    /// Some values were not counted.
    incomplete: bool,
    notices: BTreeSet<String>,
}

async fn count_label_values(
    sources: &Sources,
    current_matches: &Match,
    before: Option<&HistoryTermCounts>,
    terms_request: &TermsRequest,
) -> Result<LabelValues, Error> {
    Ok(LabelValues::new(count_terms(sources, current_matches, before, terms_request).await?, terms_request))
}

impl LabelValues {
    fn new(found: TermCounts, terms_request: &TermsRequest) -> Self {
        let value = |term: &str| -> Option<Arc<str>> { Some(Arc::from(term.strip_prefix(&terms_request.prefix)?)) };
        let sums_of = |nth: usize| -> ValueAmounts<i64> {
            found.sums.iter().filter_map(|(term, sums)| Some((value(term)?, *sums.get(nth)?))).collect()
        };
        Self {
            counts: found.counts.iter().filter_map(|(term, count)| Some((value(term)?, *count))).collect(),
            sums: (0..terms_request.sums.len()).map(sums_of).collect(),
            incomplete: found.incomplete,
            notices: found.notices,
        }
    }
}

/// The most frequent values.
fn top_values(field: String, counts: &[(Arc<str>, u64)], limit: usize) -> FacetCounts {
    let values = take_smallest(counts.iter().map(|(value, count)| (Reverse(*count), value)), limit);
    let values: Vec<(String, u64)> =
        values.into_iter().map(|(Reverse(count), value)| (value.to_string(), count)).collect();
    let more = counts.len().saturating_sub(values.len()) as u64;
    FacetCounts { field, values, more, sums: Vec::new() }
}

/// The `limit` smallest items, in ascending order. Keeps only that many items in memory.
pub(crate) fn take_smallest<T: Ord>(all: impl Iterator<Item = T>, limit: usize) -> Vec<T> {
    let mut smallest_values = BinaryHeap::with_capacity(limit + 1);
    for value in all {
        if smallest_values.len() < limit {
            smallest_values.push(value);
        } else if let Some(mut worst) = smallest_values.peek_mut()
            && value < *worst
        {
            *worst = value;
        }
    }
    smallest_values.into_sorted_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ClusterProperties;
    use rstest::rstest;

    #[test]
    fn kinds_of_one_name_are_shown_with_their_group() {
        let counts =
            ["Deployment.apps", "Deployment.x.io", "Pod", "Issuer.cert-manager.io"].map(|kind| (kind.into(), 1_u64));
        let short_kinds = shorten_kinds(&counts);
        let kinds: Vec<&str> = short_kinds.iter().map(|(kind, _)| &**kind).collect();
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
        let cluster = |name: &str, region: &str, zones: &[&str]| ClusterProperties {
            name: name.into(),
            region: region.into(),
            zones: zones.iter().map(|zone| (*zone).to_owned()).collect(),
            ..ClusterProperties::default()
        };
        let clusters = vec![
            cluster("a", "eu", &["x", "y", "x"]),
            cluster("b", "eu", &["y"]),
            cluster("c", "us", &[]),
            cluster("d", "", &[]),
        ];
        let planning_context = PlanningContext { clusters, ..PlanningContext::default() };
        let column = [("a".into(), 3), ("b".into(), 4), ("d".into(), 5)];
        let top = |field: &FacetField| {
            top_values(field.field(), &sum_by_property(field, &planning_context, &column, u64::saturating_add), 1)
        };
        assert_eq!((top(&FacetField::Region).values, top(&FacetField::Region).more), (vec![("eu".to_owned(), 7)], 0));
        assert_eq!((top(&FacetField::Zone).values, top(&FacetField::Zone).more), (vec![("y".to_owned(), 7)], 1));
        assert_eq!(top(&FacetField::Provider).values, []);
    }

    /// Sums are in the order of the groups, which are sorted by count.
    #[rstest]
    #[case::cluster(FacetField::Column(Facet::Cluster), &["b", "a", "c"], &[1, 20, 0])]
    #[case::region(FacetField::Region, &["eu", "us"], &[21, 0])]
    #[case::zone(FacetField::Zone, &["y", "x"], &[21, 20])]
    fn sums_belong_to_groups(#[case] field: FacetField, #[case] groups: &[&str], #[case] expected: &[i64]) {
        let cluster = |name: &str, region: &str, zones: &[&str]| ClusterProperties {
            name: name.into(),
            region: region.into(),
            zones: zones.iter().map(|zone| (*zone).to_owned()).collect(),
            ..ClusterProperties::default()
        };
        let clusters = vec![cluster("a", "eu", &["x", "y"]), cluster("b", "eu", &["y"]), cluster("c", "us", &[])];
        let planning_context = PlanningContext { clusters, ..PlanningContext::default() };
        let request = FacetRequest { group: Some(field.clone()), sums: vec![Number::CpuRequest], facets: Vec::new() };
        assert_eq!(
            request.sums_request(),
            Some(SumsRequest { facet: Facet::Cluster, numbers: vec![Number::CpuRequest] })
        );
        let sums = [vec![("a".into(), 20), ("b".into(), 1), ("c".into(), 0)]];
        let groups: Vec<(String, u64)> = groups.iter().map(|group| ((*group).to_owned(), 1)).collect();
        let found = request.sum_groups(&field, &planning_context, &sums, &groups);
        assert_eq!(found, [GroupSums { field: "cpu.req".to_owned(), values: expected.to_vec() }]);
    }

    /// The engine sums by term, not by column, and only for the group.
    #[test]
    fn sums_of_labels_belong_to_groups() {
        let label = FacetField::Label("app".to_owned());
        let (group, facets) = (Some(label.clone()), vec![label.clone()]);
        let request = FacetRequest { group, sums: vec![Number::CpuRequest, Number::Restarts], facets };
        assert_eq!(request.sums_request(), None);
        let terms_requests = request.terms_requests();
        let summed: Vec<&[Number]> = terms_requests.iter().map(|terms_request| terms_request.sums.as_slice()).collect();
        let none: &[Number] = &[];
        assert_eq!(summed, [none, &[Number::CpuRequest, Number::Restarts]]);

        let term = |value: &str| format!("label=app={value}");
        let found = TermCounts {
            counts: vec![(term("Web"), 3), (term("db"), 1), (term(""), 1)],
            sums: [(term("db"), vec![20, 0]), (term("Web"), vec![1500, 4]), (term(""), vec![0, 0])].into(),
            ..TermCounts::default()
        };
        let values = LabelValues::new(found, &terms_requests[1]);
        let groups = top_values(label.field(), &values.counts, 2);
        assert_eq!((groups.values.as_slice(), groups.more), (&[("Web".to_owned(), 3), (String::new(), 1)][..], 1));
        let sums = request.sum_groups(&label, &PlanningContext::default(), &values.sums, &groups.values);
        let expected = [("cpu.req", vec![1500, 0]), ("restarts", vec![4, 0])]
            .map(|(field, values)| GroupSums { field: field.to_owned(), values });
        assert_eq!(sums, expected);
    }
}
