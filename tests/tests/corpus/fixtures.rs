//! The files of the golden corpus: clusters, their objects with earlier versions, and queries with the expected
//! hits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Time of the queries, in Unix seconds.
pub const NOW: i64 = 1_790_000_000;

const CONTROL_PLANE: &str = "@control-plane";

/// The files of the corpus, without objects of the control plane and queries about them.
pub struct Corpus {
    pub clusters: Vec<Cluster>,
    /// Kinds in lower case, and their aliases.
    pub kinds: BTreeMap<String, Vec<String>>,
    pub entries: Vec<Entry>,
    pub cases: Vec<QueryCase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    pub name: String,
    pub region: String,
    pub zones: Vec<String>,
    pub provider: String,
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub stale: bool,
}

/// The first version of an object, a later one, or its deletion.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub cluster: String,
    /// Time of the change; `None` for the first version.
    pub at: Option<Timestamp>,
    pub object: Option<Value>,
    /// Kind/namespace/name or Kind/name.
    pub deleted: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryCase {
    pub query: String,
    pub hits: ExpectedHits,
    /// The first hit.
    pub first: Option<String>,
    #[serde(default)]
    pub ordered: bool,
    /// Part of the text of a notice in the response.
    pub notice: Option<String>,
    /// Number of hits per group.
    pub groups: Option<BTreeMap<String, u64>>,
    /// Sums of numeric columns, by column and group.
    #[serde(default)]
    pub sums: BTreeMap<String, BTreeMap<String, i64>>,
    /// True if the query is about objects of the control plane.
    #[serde(default)]
    pub templates: bool,
    #[serde(default, rename = "why")]
    _why: String,
}

/// Expected hits: their number, or their names in the order of the response if `ordered`.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum ExpectedHits {
    Count(u64),
    Names(Vec<String>),
}

impl QueryCase {
    /// Names of the numeric columns to sum, separated by commas.
    pub fn summed_columns(&self) -> Option<String> {
        let columns: Vec<&str> = self.sums.keys().map(String::as_str).collect();
        (!columns.is_empty()).then(|| columns.join(","))
    }
}

impl Corpus {
    /// Reads the files. Objects of the control plane are omitted, because its controllers write them in this test.
    pub fn read() -> Result<Self> {
        let (entries, mut cases): (Vec<Entry>, Vec<QueryCase>) = (read("objects")?, read("queries")?);
        let (templates, entries): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.cluster == CONTROL_PLANE);
        let qualified: BTreeMap<String, Vec<String>> = read("kinds")?;
        // Groups are not needed, because all kinds of the corpus have different names.
        let kind_of = |name: String| name.split('.').next().unwrap_or_default().to_owned();
        let mut kinds: BTreeMap<_, _> = qualified.into_iter().map(|(name, others)| (kind_of(name), others)).collect();
        kinds.retain(|kind, _| has_kind(&entries, kind) || !has_kind(&templates, kind));
        let all = cases.len();
        cases.retain(|case| !case.templates);
        ensure!(all - cases.len() < all / 10, "{} of {all} queries are about the control plane", all - cases.len());
        Ok(Self { clusters: read("clusters")?, kinds, entries, cases })
    }

    /// A few queries that cover all features of the language, for slow interfaces.
    pub fn cases_for_all_features(&self) -> Vec<&QueryCase> {
        let with_features = self.cases.iter().map(|case| (case, features(&case.query)));
        let mut left: Vec<(&QueryCase, BTreeSet<String>)> = with_features.collect();
        let mut chosen = Vec::new();
        // The query with the most new features is next; among equal ones, the first.
        while let Some(most) = left.iter().rev().max_by_key(|(_, new)| new.len()).filter(|(_, new)| !new.is_empty()) {
            let (case, new) = most.clone();
            left.iter_mut().for_each(|(_, features)| features.retain(|feature| !new.contains(feature)));
            chosen.push(case);
        }
        chosen
    }
}

fn has_kind(entries: &[Entry], kind: &str) -> bool {
    let mut kinds = entries.iter().filter_map(|entry| entry.object.as_ref()?["kind"].as_str());
    kinds.any(|other| other.to_lowercase() == kind)
}

fn read<T: DeserializeOwned>(name: &str) -> Result<T> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../index/search/tests/fixtures/corpus");
    let path = folder.join(name).with_extension("yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("cannot decode {}", path.display()))
}

/// Kind/namespace/name or Kind/name of an object.
pub fn name_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let parts = [text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"])];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

/// Fields of a query, and the forms of their values.
fn features(query: &str) -> BTreeSet<String> {
    let mut features = BTreeSet::new();
    if query.starts_with('"') && query.ends_with('"') {
        features.insert("phrase alone".to_owned());
    }
    for word in query.split([' ', '(', ')']).filter(|word| !word.is_empty()) {
        let word = word.trim_start_matches('-');
        let with_field = word.split_once(':').filter(|(field, _)| !field.contains(['"', '/', '*']));
        let value = match with_field {
            // All paths count as one feature.
            Some((field, value)) => {
                features.insert(if field.starts_with('.') { ".".to_owned() } else { field.to_owned() });
                value
            }
            None => word,
        };
        let forms = [
            ("regex", value.starts_with('/')),
            ("phrase", value.starts_with('"')),
            ("number", value.parse::<u64>().is_ok() && with_field.is_none()),
            ("glob", value.contains('*')),
            ("fuzzy", value.contains('~')),
            ("range", value.contains("..")),
            ("operator", ["AND", "OR", "NOT"].contains(&value)),
            ("has", value.starts_with("has.")),
        ];
        features.extend(forms.iter().filter(|(_, has)| *has).map(|(form, _)| format!("{form} value")));
    }
    features
}
