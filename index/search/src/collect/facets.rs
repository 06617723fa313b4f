//! Facet counts: columns of the text index, properties of the hits' clusters, and values of a label.
//!
//! Region, zones and provider belong to clusters: counts by cluster are summed when the response is created, so
//! changed properties apply immediately. Values of a label are read from its terms, and from earlier versions if
//! the query includes them.

use crate::collect::ValueAmounts;
use crate::collect::sums::SumsRequest;
use crate::collect::terms::{TermCounts, TermsRequest, count_terms};
use crate::document::columns::{Facet, Keyword, Number};
use crate::execute::{SearchResults, Sources};
use crate::plan::PlanningContext;
use crate::{FacetCounts, GroupSums};
use crowsnest_store::Error;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

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
    facets: Vec<RequestedField>,
    group: Option<RequestedField>,
    /// Numbers to sum for each group; ignored if there are no groups.
    sums: Vec<Number>,
}

/// A field to count.
#[derive(Debug, Clone)]
struct RequestedField {
    field: FacetField,
    /// The terms that an engine counts for it, if it has no column.
    terms: Option<TermsRequest>,
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
    pub fn new(facets: Vec<FacetField>, group: Option<FacetField>, sums: Vec<Number>) -> Self {
        let requested = |field: FacetField, sums: &[Number]| {
            let terms = field.terms_request(sums);
            RequestedField { field, terms }
        };
        Self {
            facets: facets.into_iter().map(|field| requested(field, &[])).collect(),
            group: group.map(|field| requested(field, &sums)),
            sums,
        }
    }

    /// True if no field is counted as a facet.
    pub fn has_no_facets(&self) -> bool {
        self.facets.is_empty()
    }

    /// True if hits are grouped.
    pub fn has_groups(&self) -> bool {
        self.group.is_some()
    }

    fn fields(&self) -> impl Iterator<Item = &RequestedField> {
        self.facets.iter().chain(&self.group)
    }

    /// The columns that the engine has to count.
    pub fn columns(&self) -> Vec<Facet> {
        let mut columns: Vec<Facet> = self.fields().filter_map(|requested| requested.field.column()).collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// The numbers that the engine has to sum by a column.
    pub fn sums_request(&self) -> Option<SumsRequest> {
        let facet = self.group.as_ref()?.field.column()?;
        (!self.sums.is_empty()).then(|| SumsRequest { facet, numbers: self.sums.clone() })
    }

    /// The terms to count in earlier versions, each once.
    pub fn terms_requests(&self) -> Vec<TermsRequest> {
        let mut requests: Vec<TermsRequest> = Vec::new();
        for terms_request in self.fields().filter_map(|requested| requested.terms.as_ref()) {
            if !requests.contains(terms_request) {
                requests.push(terms_request.clone());
            }
        }
        requests
    }

    /// Counts the fields. `found` are the results of a search for [`Self::columns`], [`Self::sums_request`] and
    /// [`Self::terms_requests`].
    pub async fn count(
        &self,
        sources: &Sources,
        planning_context: &PlanningContext,
        found: &SearchResults,
    ) -> Result<Counts, Error> {
        let counter = FieldCounter { sources, planning_context, found, columns: self.columns() };
        let mut counts = Counts::default();
        for requested in &self.facets {
            let values = counter.count(requested).await?;
            counts.facets.push(top_values(requested.field.field(), &values.counts, MAX_VALUES));
            counts.add_limits(values);
        }
        if let Some(requested) = &self.group {
            let values = counter.count(requested).await?;
            let mut groups = top_values(requested.field.field(), &values.counts, MAX_GROUPS);
            let sums = values.sums.as_deref().unwrap_or(&found.top.sums);
            groups.sums = self.sum_groups(&requested.field, planning_context, sums, &groups.values);
            counts.groups = Some(groups);
            counts.add_limits(values);
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

impl Counts {
    /// The response to a client that did not read any hits for `timeout`, after which the results of its search were dropped.
    pub fn for_stalled_client(timeout: Duration) -> Self {
        let notice = format!("facets were not counted, because no hits were read for {} s", timeout.as_secs());
        Self { incomplete: true, notices: vec![notice], ..Self::default() }
    }

    /// Adds the limits that were reached when a field was counted.
    fn add_limits(&mut self, values: FieldValues<'_>) {
        self.incomplete |= values.incomplete;
        self.notices.extend(values.notices);
    }
}

/// Values of a field with their counts.
struct FieldValues<'c> {
    counts: Cow<'c, [(Arc<str>, u64)]>,
    /// For each requested number, the sums for the values of a label; None for other fields, whose sums are those of a column.
    sums: Option<Vec<ValueAmounts<i64>>>,
    /// Some values were not counted.
    incomplete: bool,
    notices: BTreeSet<String>,
}

impl<'c> FieldValues<'c> {
    /// Values whose counts are derived from those of a column.
    fn from_column(counts: impl Into<Cow<'c, [(Arc<str>, u64)]>>) -> Self {
        Self { counts: counts.into(), sums: None, incomplete: false, notices: BTreeSet::new() }
    }

    /// Values of a label in their original case.
    fn from_terms(field: &FacetField, terms_request: &TermsRequest, found: TermCounts) -> Self {
        let value = |term: &str| -> Option<Arc<str>> { Some(Arc::from(term.strip_prefix(&terms_request.prefix)?)) };
        let sums_of = |nth: usize| -> ValueAmounts<i64> {
            found.sums.iter().filter_map(|(term, sums)| Some((value(term)?, *sums.get(nth)?))).collect()
        };
        let counts: ValueAmounts<u64> =
            found.counts.iter().filter_map(|(term, count)| Some((value(term)?, *count))).collect();
        let sums = (0..terms_request.sums.len()).map(sums_of).collect();
        let mut notices = found.notices;
        if found.incomplete {
            notices.insert(format!("not all values of {} were counted", field.field()));
        }
        Self { counts: counts.into(), sums: Some(sums), incomplete: found.incomplete, notices }
    }
}

/// Counts the values of fields for the results of a search.
struct FieldCounter<'c> {
    sources: &'c Sources,
    planning_context: &'c PlanningContext,
    found: &'c SearchResults,
    /// The columns that the engine has counted, in the order of its counts.
    columns: Vec<Facet>,
}

impl<'c> FieldCounter<'c> {
    async fn count(&self, requested: &RequestedField) -> Result<FieldValues<'c>, Error> {
        let RequestedField { field, terms } = requested;
        if let Some(terms_request) = terms {
            let SearchResults { current_matches, terms, .. } = self.found;
            let counts = count_terms(self.sources, current_matches, terms.get(terms_request), terms_request).await?;
            return Ok(FieldValues::from_terms(field, terms_request, counts));
        }
        let column = self.column_counts(field);
        Ok(match field {
            FacetField::Column(Facet::Kind) => FieldValues::from_column(shorten_kinds(column)),
            FacetField::Column(_) => FieldValues::from_column(column),
            _ => FieldValues::from_column(sum_by_property(field, self.planning_context, column, u64::saturating_add)),
        })
    }

    /// Counts of the column that belongs to the field.
    fn column_counts(&self, field: &FacetField) -> &'c [(Arc<str>, u64)] {
        let nth = self.columns.iter().position(|column| Some(*column) == field.column());
        nth.and_then(|nth| self.found.top.facets.get(nth)).map(Vec::as_slice).unwrap_or_default()
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

    fn cluster(name: &str, region: &str, zones: &[&str]) -> ClusterProperties {
        ClusterProperties {
            name: name.into(),
            region: region.into(),
            zones: zones.iter().map(|zone| (*zone).to_owned()).collect(),
            ..ClusterProperties::default()
        }
    }

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
        let clusters = vec![cluster("a", "eu", &["x", "y"]), cluster("b", "eu", &["y"]), cluster("c", "us", &[])];
        let planning_context = PlanningContext { clusters, ..PlanningContext::default() };
        let request = FacetRequest::new(Vec::new(), Some(field.clone()), vec![Number::CpuRequest]);
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
        let numbers = vec![Number::CpuRequest, Number::Restarts];
        let request = FacetRequest::new(vec![label.clone()], Some(label.clone()), numbers);
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
        let values = FieldValues::from_terms(&label, &terms_requests[1], found);
        let groups = top_values(label.field(), &values.counts, 2);
        assert_eq!((groups.values.as_slice(), groups.more), (&[("Web".to_owned(), 3), (String::new(), 1)][..], 1));
        let sums =
            request.sum_groups(&label, &PlanningContext::default(), &values.sums.unwrap_or_default(), &groups.values);
        let expected = [("cpu.req", vec![1500, 0]), ("restarts", vec![4, 0])]
            .map(|(field, values)| GroupSums { field: field.to_owned(), values });
        assert_eq!(sums, expected);
    }

    /// Only labels are counted by their terms: once for a facet and a group without sums, twice if the group has sums.
    #[rstest]
    #[case::no_labels("kind,region", "zone", &[], 0)]
    #[case::a_label("kind,label:app", "node", &[Number::CpuRequest], 1)]
    #[case::two_labels("label:app,label:tier", "label:team", &[], 3)]
    #[case::one_label_twice("label:app", "label:app", &[], 1)]
    #[case::one_label_with_sums("label:app", "label:app", &[Number::CpuRequest], 2)]
    fn terms_requests_identify_their_results(
        #[case] facets: &str,
        #[case] group: &str,
        #[case] sums: &[Number],
        #[case] expected: usize,
    ) {
        let facets = facets.split(',').filter_map(FacetField::parse).collect();
        let request = FacetRequest::new(facets, FacetField::parse(group), sums.to_vec());
        let terms_requests = request.terms_requests();
        assert_eq!(terms_requests.len(), expected);
        let mut own_requests = request.fields().filter_map(|requested| requested.terms.as_ref());
        assert!(own_requests.all(|own| terms_requests.contains(own)));
    }

    #[rstest]
    #[case::complete(false, &[])]
    #[case::rounded(false, &["sums of cpu.req are rounded"])]
    #[case::incomplete(true, &["not all values of label:app were counted"])]
    fn limits_of_labels_are_reported(#[case] incomplete: bool, #[case] expected: &[&str]) {
        let label = FacetField::Label("app".to_owned());
        let terms_request = label.terms_request(&[]).unwrap();
        let rounded = expected.iter().filter(|notice| notice.starts_with("sums")).map(|notice| (*notice).to_owned());
        let found = TermCounts { incomplete, notices: rounded.collect(), ..TermCounts::default() };
        let mut counts = Counts::default();
        counts.add_limits(FieldValues::from_terms(&label, &terms_request, found));
        assert_eq!(counts.incomplete, incomplete);
        assert_eq!(counts.notices, expected);
    }
}
