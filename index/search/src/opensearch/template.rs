//! Settings and mappings of the index, generated from the columns of the text index.
//!
//! Measured on OpenSearch 2.19.6 and 3.9.0 and on Elasticsearch 7.17.28.

use super::fields::{
    CONTENT, EXACT, FACETS, FIRST_VALUES, GRAMS, HAS, ID, KEYS, KEYWORDS, LABELS, MESSAGE, MESSAGE_LINES, NUMBERS,
    PATHS, SCOPE, facet_name, flat_name, is_multi_valued, is_multi_valued_number, key_name, keyword_name,
};
use super::model::{Facet, Key, Keyword, Number};
use serde_json::{Map, Value, json};

/// Increment it when the mappings or the terms change; an index of another version is rebuilt.
pub const VERSION: u32 = 6;

/// Maximum number of values in one `terms` query. The default, 65,536, is too low for relation keys and permissions.
pub const MAX_TERMS: usize = 1_048_576;
/// Maximum length of a regular expression in characters. The default, 1,000, is too low for a fuzzy prefix.
pub const MAX_REGEX: usize = 65_536;

/// Numbers of shards and replicas of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexSize {
    pub shards: u32,
    pub replicas: u32,
}

/// Body of the request that creates an index.
pub fn template(size: IndexSize) -> Value {
    json!({
        "settings": {
            "index": {
                "number_of_shards": size.shards,
                "number_of_replicas": size.replicas,
                // Set explicitly, because otherwise a shard that was not searched for 30 s is no longer refreshed.
                "refresh_interval": "1s",
                "max_terms_count": MAX_TERMS,
                "max_regex_length": MAX_REGEX,
                // A stale write after a delete is refused only as long as the delete is remembered: 60 s by default.
                "gc_deletes": "1h",
                // `async` lost all of 6,000 acknowledged documents after a kill.
                "translog": {"durability": "request"},
            },
            "analysis": analysis(),
        },
        "mappings": {
            "dynamic": false,
            "_meta": {"version": VERSION},
            // Stored sources would triple the disk size. Only `_update` needs them, and documents are written completely.
            "_source": {"enabled": false},
            "properties": properties(),
        },
    })
}

/// Analyzer of messages: chunks end at a line break, the suffixes of a chunk at a tab, and all suffixes of a chunk have the same position.
fn analysis() -> Value {
    json!({
        // Tokens are split at 255 characters by default.
        "tokenizer": {"lines": {"type": "char_group", "tokenize_on_chars": ["\\n"], "max_token_length": 32_768}},
        "filter": {"tails": {"type": "pattern_capture", "patterns": ["([^\\t]+)"], "preserve_original": false}},
        "analyzer": {MESSAGE_LINES: {"type": "custom", "tokenizer": "lines", "filter": ["tails"]}},
    })
}

fn properties() -> Value {
    let searched = || json!({"type": "keyword", "doc_values": false});
    let number = || json!({"type": "long"});
    let unindexed_keyword = || json!({"type": "keyword", "index": false});
    // Keys and words have doc values, because relations read keys and suggestions count words.
    let keyword = |keyword: Keyword| match keyword {
        Keyword::Anything | Keyword::Qualified => searched(),
        _ => json!({"type": "keyword"}),
    };
    let keywords = Keyword::ALL.iter().filter_map(|column| Some((keyword_name(*column)?, keyword(*column))));
    let numbers = Number::ALL.iter().map(|column| (flat_name(column.name()), number()));
    let facets = Facet::ALL
        .iter()
        .map(|facet| (facet_name(*facet), unindexed_keyword()))
        .chain([(LABELS.into(), unindexed_keyword())]);
    let keys = Key::ALL.iter().map(|column| (key_name(*column).into(), number()));
    let texts = Facet::ALL
        .iter()
        .filter(|facet| is_multi_valued(**facet))
        .map(|facet| (facet_name(*facet), unindexed_keyword()));
    let firsts = Number::ALL
        .iter()
        .filter(|column| is_multi_valued_number(**column))
        .map(|column| (flat_name(column.name()), number()));
    json!({
        ID: number(),
        KEYS: group(keys),
        KEYWORDS: group(keywords),
        NUMBERS: group(numbers),
        FACETS: group(facets),
        FIRST_VALUES: group(texts.chain(firsts)),
        EXACT: searched(),
        HAS: searched(),
        SCOPE: {"type": "keyword"},
        CONTENT: {"type": "text", "analyzer": "whitespace", "index_options": "docs", "norms": false},
        // Has doc values, because the terms that begin with the end of a phrase are counted before a search.
        MESSAGE: {"type": "keyword"},
        MESSAGE_LINES: {"type": "text", "analyzer": MESSAGE_LINES, "position_increment_gap": 100, "norms": false},
        GRAMS: {"type": "text", "analyzer": "whitespace", "position_increment_gap": 100, "norms": false},
        PATHS: searched(),
    })
}

fn group(fields: impl Iterator<Item = (std::borrow::Cow<'static, str>, Value)>) -> Value {
    let fields: Map<String, Value> = fields.map(|(name, field)| (name.into_owned(), field)).collect();
    json!({"properties": fields})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opensearch::fields;

    /// The mapping of a field, by its dotted name.
    fn mapping_of<'t>(template: &'t Value, field: &str) -> &'t Value {
        let path = field.replace('.', "/properties/");
        template.pointer(&format!("/mappings/properties/{path}")).unwrap_or_else(|| panic!("{field} is not mapped"))
    }

    #[test]
    fn every_column_has_its_field() {
        let template = template(IndexSize { shards: 1, replicas: 0 });
        let type_of = |field: String| mapping_of(&template, &field)["type"].clone();
        assert!(Keyword::ALL.iter().all(|keyword| type_of(fields::keyword(*keyword)) == "keyword"));
        for number in Number::ALL {
            assert_eq!(
                (type_of(fields::number(*number)), type_of(fields::sort_number(*number))),
                ("long".into(), "long".into())
            );
        }
        for facet in Facet::ALL {
            assert_eq!(mapping_of(&template, &fields::facet(*facet))["index"], false);
            assert_eq!(type_of(fields::sort_facet(*facet)), "keyword");
        }
        assert!(Key::ALL.iter().all(|key| type_of(fields::key(*key)) == "long"));
    }

    #[test]
    fn the_template_matches_its_snapshot() {
        insta::assert_json_snapshot!("template", template(IndexSize { shards: 1, replicas: 0 }));
    }
}
