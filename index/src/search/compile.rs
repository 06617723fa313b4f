//! Column tests as tantivy queries.

use super::matches::{Match, Test};
use super::patterns::MOST_EDITS;
use super::rank::{ANYTHING, CONTENT, MESSAGE, NAME_EXACT, NAME_PREFIX};
use crate::text::TextIndex;
use crate::text::columns::{Columns, Number, Word};
use crate::text::terms::{Looks, Remembered, Terms};
use crate::text::tokens::begins_terms;
use std::collections::BTreeSet;
use std::ops::Bound;
use tantivy::Term;
use tantivy::query::{
    AllQuery, BooleanQuery, ConstScoreQuery, EmptyQuery, FuzzyTermQuery, Occur, Query, RangeQuery, TermQuery,
    TermSetQuery,
};
use tantivy::schema::{Field, IndexRecordOption};

type Made = Box<dyn Query>;

/// A query, and the patterns the engine could not take.
pub struct Compiled {
    pub query: Made,
    pub refused: Vec<String>,
}

/// Compiles a plan. Only bare words score; everything else filters.
pub fn compile(matches: &Match, text: &TextIndex) -> Compiled {
    let mut compiler = Compiler { columns: &text.columns, remembered: &text.remembered, refused: Vec::new() };
    let query = compiler.query(matches);
    Compiled { query, refused: compiler.refused }
}

struct Compiler<'c> {
    columns: &'c Columns,
    remembered: &'c Remembered,
    refused: Vec<String>,
}

fn constant(query: Made, score: f32) -> Made {
    Box::new(ConstScoreQuery::new(query, score))
}

impl Compiler<'_> {
    fn query(&mut self, matches: &Match) -> Made {
        match matches {
            Match::All => constant(Box::new(AllQuery), 0.0),
            Match::None => Box::new(EmptyQuery),
            Match::And(parts) => self.all_of(parts),
            Match::Or(parts) => {
                let parts = parts.iter().map(|part| (Occur::Should, self.query(part))).collect();
                Box::new(BooleanQuery::new(parts))
            }
            Match::Not(_) => self.all_of(std::slice::from_ref(matches)),
            Match::Word(word, test) => {
                let query = self.test(self.columns.word(*word), test);
                constant(query, 0.0)
            }
            Match::Exact(word, value) => {
                let term = Term::from_field_text(self.columns.word(Word::Exact), &format!("{}={value}", word.name()));
                constant(Box::new(TermQuery::new(term, IndexRecordOption::Basic)), 0.0)
            }
            Match::Number(number, from, to) => constant(self.range(*number, *from, *to), 0.0),
            Match::Content(chunks) => self.prefixes(self.columns.content, chunks, 0.0),
            Match::Message(chunks) => self.prefixes(self.columns.message, chunks, 0.0),
            Match::Bare(word) => self.bare(word),
            Match::BareRegex(pattern) => {
                let whole = self.regex(self.columns.word(Word::Anything), pattern);
                let inside = self.regex(self.columns.content, pattern);
                let mut parts = vec![(whole, ANYTHING), (inside, CONTENT)];
                if pattern.contains('/') {
                    parts.push((self.regex(self.columns.word(Word::Qualified), pattern), ANYTHING));
                }
                self.any_scored(parts)
            }
            Match::Fuzzy(word, distance) => {
                let distance = (*distance).min(MOST_EDITS);
                let fuzzy = |field: Field| -> Made {
                    Box::new(FuzzyTermQuery::new_prefix(Term::from_field_text(field, word), distance, true))
                };
                let (name, content) = (fuzzy(self.columns.word(Word::Name)), fuzzy(self.columns.content));
                self.any_scored(vec![(name, NAME_PREFIX), (content, CONTENT)])
            }
            Match::Keys(keys, numbers) => {
                let parts = keys.iter().map(|key| (Occur::Should, self.numbers(self.columns.key(*key), numbers)));
                Box::new(BooleanQuery::new(parts.collect()))
            }
            Match::Ids(ids) => self.numbers(self.columns.id, ids),
            Match::Because(_, _, inner) => self.query(inner),
            // Looked up before: whoever did not holds nothing too little.
            Match::Path(_) | Match::Reach(_) | Match::Changed(_) => constant(Box::new(AllQuery), 0.0),
            Match::Clusters(names) => {
                let field = self.columns.word(Word::Cluster);
                let terms = names.iter().map(|name| Term::from_field_text(field, name));
                constant(Box::new(TermSetQuery::new(terms)), 0.0)
            }
        }
    }

    fn all_of(&mut self, parts: &[Match]) -> Made {
        let mut clauses: Vec<(Occur, Made)> = Vec::with_capacity(parts.len() + 1);
        for part in parts {
            match part {
                Match::Not(inner) => clauses.push((Occur::MustNot, self.query(inner))),
                other => clauses.push((Occur::Must, self.query(other))),
            }
        }
        if clauses.iter().all(|(occur, _)| *occur == Occur::MustNot) {
            clauses.push((Occur::Must, constant(Box::new(AllQuery), 0.0)));
        }
        Box::new(BooleanQuery::new(clauses))
    }

    fn any_scored(&self, parts: Vec<(Made, f32)>) -> Made {
        let parts = parts.into_iter().map(|(query, score)| (Occur::Should, constant(query, score)));
        Box::new(BooleanQuery::new(parts.collect()))
    }

    fn bare(&mut self, word: &str) -> Made {
        let name = self.columns.word(Word::Name);
        let contains = Looks::Contains(word.to_owned());
        let mut parts = vec![
            (self.term(name, word), NAME_EXACT),
            (self.terms(name, Looks::Begins(word.to_owned())), NAME_PREFIX),
            (self.terms(self.columns.word(Word::Anything), contains.clone()), ANYTHING),
        ];
        if word.contains('/') {
            parts.push((self.terms(self.columns.word(Word::Qualified), contains), ANYTHING));
        }
        let chunks: Vec<String> = crate::text::tokens::chunks(word).map(str::to_owned).collect();
        if !chunks.is_empty() {
            parts.push((self.prefixes(self.columns.message, &chunks, 0.0), MESSAGE));
            parts.push((self.prefixes(self.columns.content, &chunks, 0.0), CONTENT));
        }
        self.any_scored(parts)
    }

    fn numbers(&self, field: Field, numbers: &BTreeSet<u64>) -> Made {
        let terms = numbers.iter().map(|number| Term::from_field_u64(field, *number));
        constant(Box::new(TermSetQuery::new(terms)), 0.0)
    }

    fn term(&self, field: Field, text: &str) -> Made {
        Box::new(TermQuery::new(Term::from_field_text(field, &text.to_lowercase()), IndexRecordOption::Basic))
    }

    fn test(&mut self, field: Field, test: &Test) -> Made {
        match test {
            Test::Equals(text) => self.term(field, text),
            Test::Contains(text) => self.terms(field, Looks::Contains(text.clone())),
            Test::Regex(pattern) => self.regex(field, pattern),
            Test::Near(word, distance) => {
                Box::new(FuzzyTermQuery::new(Term::from_field_text(field, word), *distance, true))
            }
        }
    }

    /// Every chunk begins some term; a very short one is a term.
    fn prefixes(&mut self, field: Field, chunks: &[String], score: f32) -> Made {
        if chunks.is_empty() {
            return Box::new(EmptyQuery);
        }
        let parts = chunks.iter().map(|chunk| {
            let query = match begins_terms(chunk) {
                true => self.terms(field, Looks::BeginsInText(chunk.clone())),
                false => self.term(field, chunk),
            };
            (Occur::Must, constant(query, score))
        });
        Box::new(BooleanQuery::new(parts.collect()))
    }

    fn regex(&mut self, field: Field, pattern: &str) -> Made {
        self.terms(field, Looks::Matches(pattern.to_owned()))
    }

    fn terms(&mut self, field: Field, looks: Looks) -> Made {
        match Terms::new(field, looks.clone(), self.remembered) {
            Ok(query) => Box::new(query),
            Err(error) => {
                self.refused.push(format!("{}: {error}", looks.text()));
                Box::new(EmptyQuery)
            }
        }
    }

    fn range(&self, number: Number, from: Option<i64>, to: Option<i64>) -> Made {
        let field = self.columns.number(number);
        let bound = |value: Option<i64>| match value {
            Some(value) => Bound::Included(Term::from_field_i64(field, value)),
            None => Bound::Unbounded,
        };
        match (from, to) {
            (Some(from), Some(to)) if from > to => Box::new(EmptyQuery),
            (None, None) => self.term(self.columns.word(Word::Has), number.name()),
            (from, to) => Box::new(RangeQuery::new(bound(from), bound(to))),
        }
    }
}
