//! Conditions on documents, shared by all engines and by the direct evaluation that explains hits.
//!
//! Created by [`crate::plan`]. Relations and paths are resolved ([`crate::plan::relations`], [`crate::execute`])
//! before an engine evaluates the rest.

use crate::document::CONTENT_TRUNCATED;
use crate::document::columns::{Key, Keyword, Number};
use crate::document::tokens::chunks;
pub use crate::plan::paths::PathTest;
pub use crate::plan::patterns::Test;
use crate::plan::relations::Relation;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Set of ids or keys, small compared to the documents.
pub type IdSet = Arc<BTreeSet<u64>>;

/// A condition on documents.
#[derive(Debug, Clone, PartialEq)]
pub enum Match {
    All,
    None,
    And(Vec<Match>),
    Or(Vec<Match>),
    Not(Box<Match>),
    /// A value of the column passes the test.
    Keyword(Keyword, Test),
    /// A value of the column equals this one, case-sensitively.
    Exact(Keyword, String),
    /// A value of the column is in the range, inclusive.
    Number(Number, Option<i64>, Option<i64>),
    /// Every chunk is the beginning of a term of the manifest.
    Content(Vec<String>),
    /// A message contains the chunks in sequence; the last may be the beginning of a word.
    Message(Vec<String>),
    /// A bare word, matched in all searched columns, ranked.
    Bare(String),
    /// A bare glob or regex: on complete strings, or on terms of the manifest.
    BareRegex(String),
    Fuzzy(String, u8),
    Clusters(BTreeSet<String>),
    /// A value at a manifest path passes.
    Path(PathTest),
    /// The object is related to others.
    Relation(Box<Relation>),
    /// A change in the history affected a path (dotted, with globs) or a field below it.
    Changed(String),
    /// One of the columns contains one of the keys.
    Keys(Vec<Key>, IdSet),
    /// The record has one of the ids.
    Ids(IdSet),
    /// A condition found by a lookup, with the (field, value) that is shown as the reason.
    WithReason(String, String, Box<Match>),
}

impl Match {
    /// Any of the conditions; an empty list matches nothing.
    pub fn any_of(mut matches: Vec<Match>) -> Self {
        match matches.len() {
            0 => Match::None,
            1 => matches.remove(0),
            _ => Match::Or(matches),
        }
    }

    pub fn negated(self) -> Self {
        Match::Not(Box::new(self))
    }

    pub fn and(self, other: Match) -> Self {
        match self {
            Match::All => other,
            this => Match::And(vec![this, other]),
        }
    }

    /// Condition that the object has a value in the column.
    pub fn has(column: &str) -> Self {
        Match::Keyword(Keyword::Has, Test::Equals(column.to_lowercase()))
    }

    pub fn keys(columns: &[Key], keys: BTreeSet<u64>) -> Self {
        if keys.is_empty() { Match::None } else { Match::Keys(columns.to_vec(), Arc::new(keys)) }
    }

    /// True if the predicate is true for this condition or for a part of it.
    pub fn contains(&self, predicate: &dyn Fn(&Match) -> bool) -> bool {
        predicate(self)
            || match self {
                Match::And(parts) | Match::Or(parts) => parts.iter().any(|part| part.contains(predicate)),
                Match::Not(inner) | Match::WithReason(_, _, inner) => inner.contains(predicate),
                Match::Relation(relation) => relation.inner().contains(predicate),
                _ => false,
            }
    }

    /// A weaker condition without paths, for engines that do not support them.
    pub fn without_paths(&self) -> Match {
        match self {
            Match::And(parts) => Match::And(parts.iter().map(Match::without_paths).collect()),
            Match::Or(parts) => Match::Or(parts.iter().map(Match::without_paths).collect()),
            Match::Not(inner) if inner.needs_bodies() => Match::All,
            Match::WithReason(field, value, inner) => {
                Match::WithReason(field.clone(), value.clone(), Box::new(inner.without_paths()))
            }
            Match::Path(path) => {
                let words: Vec<String> = path.words().iter().flat_map(|word| chunks(word)).map(str::to_owned).collect();
                match words.is_empty() {
                    true => Match::All,
                    false => Match::Or(vec![Match::Content(words), Match::has(CONTENT_TRUNCATED)]),
                }
            }
            other => other.clone(),
        }
    }

    /// True if the reasons of a hit cannot be derived from its printed columns alone, so that its manifest must be
    /// read.
    pub fn reads_manifests(&self) -> bool {
        let printed = |keyword: &Keyword| {
            matches!(
                keyword,
                Keyword::Kind
                    | Keyword::Group
                    | Keyword::ApiVersion
                    | Keyword::Name
                    | Keyword::Namespace
                    | Keyword::Qualified
                    | Keyword::Uid
                    | Keyword::Cluster
                    | Keyword::Owner
                    | Keyword::Node
                    | Keyword::Status
                    | Keyword::Phase
                    | Keyword::Type
                    | Keyword::Ip
                    | Keyword::Reason
                    | Keyword::Condition
                    | Keyword::Image
                    | Keyword::ImageTag
                    | Keyword::Digest
                    | Keyword::Label
                    | Keyword::LabelKey
            )
        };
        self.contains(&|part| match part {
            Match::Keyword(keyword, _) | Match::Exact(keyword, _) => !printed(keyword),
            Match::Content(_) | Match::Message(_) | Match::Bare(_) | Match::BareRegex(_) | Match::Fuzzy(..) => true,
            Match::Path(_) | Match::Relation(_) | Match::Changed(_) | Match::Keys(..) | Match::WithReason(..) => true,
            Match::All | Match::None | Match::And(_) | Match::Or(_) | Match::Not(_) => false,
            Match::Number(..) | Match::Clusters(_) | Match::Ids(_) => false,
        })
    }

    /// True if a single bare word determines the score and is the only part that needs manifests.
    pub fn is_one_word(&self) -> bool {
        let words = Cell::new(0);
        let more = self.contains(&|part| match part {
            Match::Bare(_) => words.replace(words.get() + 1) > 0,
            Match::And(_) | Match::Or(_) => false,
            // Negated parts do not score.
            Match::Not(_) => true,
            leaf => leaf.reads_manifests(),
        });
        !more && words.get() == 1
    }

    pub fn needs_bodies(&self) -> bool {
        self.contains(&|part| matches!(part, Match::Path(_)))
    }
}
