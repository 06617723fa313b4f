//! From the query's tree to column tests, the same for every engine and for the direct evaluation that explains hits.
//!
//! Pure. What needs the fleet (kinds, regions, cluster labels) is looked up through [`World`]. Terms that are not served
//! yet are left out with a notice instead of blanking the answer.

pub use super::patterns::{Test, compile};
use super::patterns::{glob_regex, literal_word, piece, test, unanchored};
use crate::query::{
    Compare, Expr, Field, FieldKind, KnownField, LabelMatch, LabelOp, Literal, Moment, Notice, Pattern, Scalar, Span,
    Term, TermKind, Value,
};
use crate::text::columns::{Number, Word};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Lower-case kinds by every name they go by.
pub type Kinds = BTreeMap<String, BTreeSet<String>>;

/// What a plan has to know about the fleet.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub clusters: Vec<ClusterFacts>,
    /// Lower-case name, plural or short name → lower-case kinds.
    pub kinds: Arc<Kinds>,
    /// Unix seconds.
    pub now: i64,
}

/// What queries ask of a cluster itself.
#[derive(Debug, Clone, Default)]
pub struct ClusterFacts {
    pub name: String,
    pub region: String,
    pub zones: Vec<String>,
    pub provider: String,
    pub labels: BTreeMap<String, String>,
    /// Its records are known to be behind.
    pub stale: bool,
}

/// A condition on documents.
#[derive(Debug, Clone, PartialEq)]
pub enum Match {
    All,
    None,
    And(Vec<Match>),
    Or(Vec<Match>),
    Not(Box<Match>),
    /// Some value of the column passes.
    Word(Word, Test),
    /// Some value of the column is exactly this, case and all.
    Exact(Word, String),
    /// Some value of the column lies between, ends included.
    Number(Number, Option<i64>, Option<i64>),
    /// Every chunk begins a term of the manifest.
    Content(Vec<String>),
    Message(Vec<String>),
    /// A bare word: anywhere, ranked.
    Bare(String),
    /// A bare glob or regex: on whole strings, or on terms of the manifest.
    BareRegex(String),
    Fuzzy(String, u8),
    Clusters(BTreeSet<String>),
}

/// A planned query.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub matches: Match,
    pub notices: Vec<Notice>,
}

/// Kinds `kind:workload` stands for.
const WORKLOADS: [&str; 8] =
    ["deployment", "statefulset", "daemonset", "replicaset", "replicationcontroller", "job", "cronjob", "pod"];

/// Plans the filter of a query.
pub fn plan(filter: &Expr, world: &World) -> Plan {
    let mut planner = Planner { world, notices: Vec::new() };
    let matches = planner.expr(filter).unwrap_or(Match::All);
    Plan { matches, notices: planner.notices }
}

struct Planner<'w> {
    world: &'w World,
    notices: Vec<Notice>,
}

fn any_of(mut matches: Vec<Match>) -> Match {
    match matches.len() {
        0 => Match::None,
        1 => matches.remove(0),
        _ => Match::Or(matches),
    }
}

fn not(inner: Match) -> Match {
    Match::Not(Box::new(inner))
}

impl Planner<'_> {
    fn notice(&mut self, span: Span, message: impl Into<String>) {
        self.notices.push(Notice { span, message: message.into() });
    }

    /// None: the term steers nothing here and is left out.
    fn expr(&mut self, expr: &Expr) -> Option<Match> {
        match expr {
            Expr::All => Some(Match::All),
            Expr::Not(inner) => self.expr(inner).map(not),
            Expr::And(parts) => {
                let parts: Vec<_> = parts.iter().filter_map(|part| self.expr(part)).collect();
                (!parts.is_empty()).then_some(Match::And(parts))
            }
            Expr::Or(parts) => {
                let parts: Vec<_> = parts.iter().filter_map(|part| self.expr(part)).collect();
                (!parts.is_empty()).then_some(Match::Or(parts))
            }
            Expr::Term(term) => self.term(term),
        }
    }

    fn term(&mut self, term: &Term) -> Option<Match> {
        match &term.kind {
            TermKind::Text(pattern) => Some(match pattern {
                Pattern::Word(word) | Pattern::Phrase(word) => Match::Bare(word.to_lowercase()),
                Pattern::Glob(glob) => Match::BareRegex(glob_regex(glob, ".")),
                Pattern::Regex { source, .. } => Match::BareRegex(unanchored(source)),
                Pattern::Fuzzy { word, distance } => Match::Fuzzy(word.to_lowercase(), *distance),
            }),
            TermKind::Has { what, .. } => {
                self.notice(term.span, format!("has.{what}(…) is not served yet; it was left out"));
                None
            }
            TermKind::Field { field: Field::Path(path), .. } => {
                self.notice(term.span, format!("paths (.{path}) are not served yet; it was left out"));
                None
            }
            TermKind::Field { field: Field::Known(field), exact, values } => {
                let mut found = Vec::new();
                for value in &values.any {
                    found.push(self.value(term.span, field, *exact, value)?);
                }
                let found = any_of(found);
                Some(if values.negated { not(found) } else { found })
            }
        }
    }

    fn value(&mut self, span: Span, field: &'static KnownField, exact: bool, value: &Value) -> Option<Match> {
        match field.kind {
            FieldKind::Label => return Some(self.label(field.name, exact, value)),
            FieldKind::Number | FieldKind::Quantity | FieldKind::Age | FieldKind::Time => {
                return self.number(span, field, value);
            }
            _ => {}
        }
        if matches!(value, Value::Exists)
            && let Some(word) = column(field.name)
        {
            return Some(Match::Word(Word::Has, Test::Equals(word.name().to_lowercase())));
        }
        let Value::Pattern(pattern) = value else {
            self.notice(span, format!("{} takes words; it was left out", field.name));
            return None;
        };
        match field.name {
            "kind" => Some(self.kind(pattern)),
            "region" | "zone" | "provider" => Some(self.clusters_where(
                |cluster, test| match field.name {
                    "region" => test(&cluster.region),
                    "provider" => test(&cluster.provider),
                    _ => cluster.zones.iter().any(|zone| test(zone)),
                },
                pattern,
            )),
            "is" => self.state(span, pattern),
            "content" => Some(text_match(pattern, Match::Content)),
            "message" => Some(text_match(pattern, Match::Message)),
            "owner" | "about" | "uses" => Some(self.reference(field.name, pattern)),
            "condition" => Some(condition(pattern)),
            name => match column(name) {
                Some(word) => Some(match (exact, literal_word(pattern)) {
                    (true, Some(text)) => Match::Exact(word, text.to_owned()),
                    _ if word == Word::Image => image(pattern),
                    _ => Match::Word(word, test(pattern, false)),
                }),
                None => {
                    self.notice(span, format!("{name}: is not served yet; it was left out"));
                    None
                }
            },
        }
    }

    /// Names, plurals, short names and groups of kinds.
    fn kind(&self, pattern: &Pattern) -> Match {
        let Some(word) = literal_word(pattern) else { return Match::Word(Word::Kind, test(pattern, false)) };
        let word = word.to_lowercase();
        if matches!(word.as_str(), "workload" | "workloads") {
            return any_of(WORKLOADS.map(|kind| Match::Word(Word::Kind, Test::Equals(kind.to_owned()))).to_vec());
        }
        let kinds = self.kinds_named(&word);
        any_of(kinds.into_iter().map(|kind| Match::Word(Word::Kind, Test::Equals(kind))).collect())
    }

    fn kinds_named(&self, word: &str) -> BTreeSet<String> {
        match self.world.kinds.get(word) {
            Some(kinds) => kinds.clone(),
            None => BTreeSet::from([word.to_owned()]),
        }
    }

    fn clusters_where(&self, has: impl Fn(&ClusterFacts, &dyn Fn(&str) -> bool) -> bool, pattern: &Pattern) -> Match {
        let wanted = test(pattern, false);
        let regex = wanted.regex();
        let passes = |value: &str| wanted.passes(&value.to_lowercase(), regex.as_ref());
        let clusters = self.world.clusters.iter().filter(|cluster| has(cluster, &passes));
        Match::Clusters(clusters.map(|cluster| cluster.name.clone()).collect())
    }

    fn state(&mut self, span: Span, pattern: &Pattern) -> Option<Match> {
        let word = literal_word(pattern).unwrap_or_default().to_lowercase();
        match word.as_str() {
            "terminating" | "unhealthy" | "managed" | "suspended" => Some(Match::Word(Word::Is, Test::Equals(word))),
            "stale" => {
                let stale = self.world.clusters.iter().filter(|cluster| cluster.stale);
                Some(Match::Clusters(stale.map(|cluster| cluster.name.clone()).collect()))
            }
            "orphan" => Some(not(Match::Word(Word::Has, Test::Equals(Word::Owner.name().to_owned())))),
            _ => {
                self.notice(span, format!("is:{word} is not served yet; it was left out"));
                None
            }
        }
    }

    /// `web`, `deploy/web`, `deploy/shop/web`.
    fn reference(&self, field: &str, pattern: &Pattern) -> Match {
        let word = match field {
            "owner" => Word::Owner,
            "about" => Word::About,
            _ => Word::Uses,
        };
        let (text, is_glob) = match pattern {
            Pattern::Word(text) | Pattern::Phrase(text) | Pattern::Fuzzy { word: text, .. } => {
                (text.to_lowercase(), false)
            }
            Pattern::Glob(glob) => (glob.to_lowercase(), true),
            Pattern::Regex { source, .. } => return Match::Word(word, Test::Regex(unanchored(source))),
        };
        let part = |text: &str| if is_glob { glob_regex(text, "[^/]") } else { regex::escape(text) };
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, namespace, name) = match parts.as_slice() {
            [name] => (None, None, *name),
            [kind, name] => (Some(*kind), None, *name),
            [kind, namespace, name] => (Some(*kind), Some(*namespace), *name),
            _ => return Match::Word(word, Test::Equals(text)),
        };
        let kinds = match kind {
            None => "[^/]*".to_owned(),
            Some(kind) if is_glob => part(kind),
            Some(kind) => {
                let kinds: Vec<_> = self.kinds_named(kind).iter().map(|kind| regex::escape(kind)).collect();
                format!("(?:{})", kinds.join("|"))
            }
        };
        match (word, namespace) {
            (Word::About, Some(namespace)) => {
                Match::Word(word, Test::Regex(format!("{kinds}/{}/{}", part(namespace), part(name))))
            }
            (_, Some(namespace)) => Match::And(vec![
                Match::Word(Word::Namespace, Test::Regex(part(namespace))),
                Match::Word(word, Test::Regex(format!("{kinds}/{}", part(name)))),
            ]),
            (_, None) => Match::Word(word, Test::Regex(format!("{kinds}/{}", part(name)))),
        }
    }

    fn label(&self, field: &str, exact: bool, value: &Value) -> Match {
        let one = |label: &LabelMatch| match field {
            "cluster.label" => self.cluster_label(label),
            "ann" => label_match(label, Word::Annotation, Word::AnnotationKey, exact),
            _ => label_match(label, Word::Label, Word::LabelKey, exact),
        };
        match value {
            Value::Label(label) => one(label),
            Value::Selector(all) => match all.as_slice() {
                [] => Match::All,
                all => Match::And(all.iter().map(one).collect()),
            },
            _ if field == "cluster.label" => {
                let labelled = self.world.clusters.iter().filter(|cluster| !cluster.labels.is_empty());
                Match::Clusters(labelled.map(|cluster| cluster.name.clone()).collect())
            }
            _ => {
                let key = if field == "ann" { Word::AnnotationKey } else { Word::LabelKey };
                Match::Word(Word::Has, Test::Equals(key.name().to_owned()))
            }
        }
    }

    fn cluster_label(&self, label: &LabelMatch) -> Match {
        let key = Test::Regex(piece(&label.key, "."));
        let key_regex = key.regex();
        let has = |cluster: &ClusterFacts, values: &[Pattern]| {
            cluster.labels.iter().any(|(name, value)| {
                let right_key = key.passes(&name.to_lowercase(), key_regex.as_ref());
                right_key
                    && (values.is_empty()
                        || values.iter().any(|pattern| {
                            let wanted = Test::Regex(piece(pattern, "."));
                            wanted.passes(&value.to_lowercase(), wanted.regex().as_ref())
                        }))
            })
        };
        let holds = |cluster: &&ClusterFacts| match &label.op {
            LabelOp::Exists => has(cluster, &[]),
            LabelOp::Absent => !has(cluster, &[]),
            LabelOp::In(values) => has(cluster, values),
            LabelOp::NotIn(values) => !has(cluster, values),
        };
        Match::Clusters(self.world.clusters.iter().filter(holds).map(|cluster| cluster.name.clone()).collect())
    }

    fn number(&mut self, span: Span, field: &'static KnownField, value: &Value) -> Option<Match> {
        let (column, scale) = match field.name {
            "exit" => (Number::Exit, 1.0),
            "restarts" => (Number::Restarts, 1.0),
            "replicas" => (Number::Replicas, 1.0),
            "ready" => (Number::Ready, 1.0),
            "count" => (Number::Count, 1.0),
            "cpu.req" => (Number::CpuRequest, 1000.0),
            "cpu.limit" => (Number::CpuLimit, 1000.0),
            "mem.req" => (Number::MemoryRequest, 1.0),
            "mem.limit" => (Number::MemoryLimit, 1.0),
            "age" | "created" => (Number::Created, 1.0),
            "changed" => (Number::Changed, 1.0),
            "last" => (Number::LastSeen, 1.0),
            other => {
                self.notice(span, format!("{other}: is not served yet; it was left out"));
                return None;
            }
        };
        let since = field.kind == FieldKind::Age;
        let scalar = |literal: &Literal| self.scalar(literal, scale, since);
        Some(match value {
            Value::Exists => Match::Word(Word::Has, Test::Equals(column.name().to_lowercase())),
            Value::Compare(compare, literal) => {
                let (number, turned) = scalar(literal);
                compared(column, if turned { turn(*compare) } else { *compare }, number)
            }
            Value::Range(low, high) => {
                let (mut from, mut to) = (None, None);
                if let Some((number, turned)) = low.as_ref().map(scalar) {
                    if turned { to = Some(number.floor() as i64) } else { from = Some(number.ceil() as i64) }
                }
                if let Some((number, turned)) = high.as_ref().map(scalar) {
                    if turned { from = Some(number.ceil() as i64) } else { to = Some(number.floor() as i64) }
                }
                Match::Number(column, from, to)
            }
            Value::Pattern(_) | Value::Label(_) | Value::Selector(_) => Match::None,
        })
    }

    /// A literal in the column's unit; true when more of the literal means less of the column (ages).
    fn scalar(&self, literal: &Literal, scale: f64, since: bool) -> (f64, bool) {
        let now = self.world.now as f64;
        match &literal.value {
            Scalar::Number(number) if since => (now - number, true),
            Scalar::Number(number) => (number * scale, false),
            Scalar::Duration(seconds) => (now - seconds, true),
            Scalar::Moment(Moment::Ago(seconds)) => (now - seconds, false),
            Scalar::Moment(Moment::Absolute(time)) => (time.as_second() as f64, false),
        }
    }
}

fn turn(compare: Compare) -> Compare {
    match compare {
        Compare::Less => Compare::Greater,
        Compare::LessOrEqual => Compare::GreaterOrEqual,
        Compare::Greater => Compare::Less,
        Compare::GreaterOrEqual => Compare::LessOrEqual,
        same => same,
    }
}

/// Whole numbers that compare so with a number that may have a fraction.
fn compared(column: Number, compare: Compare, number: f64) -> Match {
    let whole = number.fract() == 0.0;
    let (floor, ceil) = (number.floor() as i64, number.ceil() as i64);
    match compare {
        Compare::Less => Match::Number(column, None, Some(if whole { floor - 1 } else { floor })),
        Compare::LessOrEqual => Match::Number(column, None, Some(floor)),
        Compare::Greater => Match::Number(column, Some(if whole { ceil + 1 } else { ceil }), None),
        Compare::GreaterOrEqual => Match::Number(column, Some(ceil), None),
        Compare::Equal if whole => Match::Number(column, Some(floor), Some(floor)),
        Compare::Equal => Match::None,
        Compare::NotEqual => not(Match::Number(column, Some(ceil), Some(floor))),
    }
}

/// Columns a field of words asks directly.
fn column(field: &str) -> Option<Word> {
    Some(match field {
        "kind" => Word::Kind,
        "group" => Word::Group,
        "apiVersion" => Word::ApiVersion,
        "name" => Word::Name,
        "namespace" => Word::Namespace,
        "uid" => Word::Uid,
        "cluster" => Word::Cluster,
        "owner" => Word::Owner,
        "node" => Word::Node,
        "ip" => Word::Ip,
        "status" => Word::Status,
        "reason" => Word::Reason,
        "phase" => Word::Phase,
        "condition" => Word::Condition,
        "image" => Word::Image,
        "image.tag" => Word::ImageTag,
        "digest" => Word::Digest,
        "type" => Word::Type,
        "about" => Word::About,
        "uses" => Word::Uses,
        _ => return None,
    })
}

/// `image:nginx` is any part; a glob may begin at any path segment and leave the tag open.
fn image(pattern: &Pattern) -> Match {
    let test = match pattern {
        Pattern::Glob(glob) => Test::Regex(format!("(?:.*/)?{}(?:[:@].*)?", glob_regex(glob, "."))),
        other => test(other, true),
    };
    Match::Word(Word::Image, test)
}

/// `Ready=False`, or any status of `Ready`.
fn condition(pattern: &Pattern) -> Match {
    let text = match pattern {
        Pattern::Word(text) | Pattern::Phrase(text) | Pattern::Glob(text) | Pattern::Fuzzy { word: text, .. } => text,
        Pattern::Regex { source, .. } => return Match::Word(Word::Condition, Test::Regex(unanchored(source))),
    };
    let part = |text: &str| {
        if matches!(pattern, Pattern::Glob(_)) { glob_regex(text, ".") } else { regex::escape(&text.to_lowercase()) }
    };
    let regex = match text.split_once('=') {
        Some((type_, status)) => format!("{}={}", part(type_), part(status)),
        None => format!("{}=.*", part(text)),
    };
    Match::Word(Word::Condition, Test::Regex(regex))
}

fn text_match(pattern: &Pattern, make: fn(Vec<String>) -> Match) -> Match {
    match pattern {
        Pattern::Word(text) | Pattern::Phrase(text) => {
            make(crate::text::tokens::chunks(&text.to_lowercase()).map(str::to_owned).collect())
        }
        Pattern::Fuzzy { word, distance } => Match::Fuzzy(word.to_lowercase(), *distance),
        Pattern::Glob(glob) => Match::BareRegex(glob_regex(glob, ".")),
        Pattern::Regex { source, .. } => Match::BareRegex(unanchored(source)),
    }
}

fn label_match(label: &LabelMatch, pair: Word, key: Word, exact: bool) -> Match {
    let has_key = || match literal_word(&label.key) {
        Some(word) => Match::Word(key, Test::Equals(word.to_lowercase())),
        None => Match::Word(key, Test::Regex(piece(&label.key, "."))),
    };
    let has_value = |value: &Pattern| match (literal_word(&label.key), literal_word(value)) {
        (Some(name), Some(value)) if exact => Match::Exact(pair, format!("{name}={value}")),
        (Some(name), Some(value)) => Match::Word(pair, Test::Equals(format!("{name}={value}").to_lowercase())),
        _ => Match::Word(pair, Test::Regex(format!("{}={}", piece(&label.key, "[^=]"), piece(value, ".")))),
    };
    match &label.op {
        LabelOp::Exists => has_key(),
        LabelOp::Absent => not(has_key()),
        LabelOp::In(values) => any_of(values.iter().map(has_value).collect()),
        LabelOp::NotIn(values) => not(any_of(values.iter().map(has_value).collect())),
    }
}
