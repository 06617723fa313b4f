//! Schema of the tantivy index, and conversion of documents.

use super::tokenizer::{MESSAGES, TEXT, WHOLE};
use crate::document::Document;
use crate::document::columns::{Facet, Key, Keyword, Number};
use crate::document::tokens::unique_chunks;
use tantivy::TantivyDocument;
use tantivy::schema::{FAST, Field, INDEXED, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};

/// The fields of the schema, by column.
#[derive(Debug, Clone)]
pub struct Columns {
    keywords: Vec<Field>,
    numbers: Vec<Field>,
    facets: Vec<Field>,
    keys: Vec<Field>,
    /// Record id, by which documents are deleted and fetched.
    pub id: Field,
    /// Text of the manifest.
    pub content: Field,
    /// Messages of events, conditions and containers, with word positions.
    pub message: Field,
}

/// The column of record ids.
pub const ID: &str = "id";
const CONTENT: &str = "content";
const MESSAGE: &str = "message";

impl Columns {
    pub fn schema() -> Schema {
        let mut schema = Schema::builder();
        let text_options = |tokenizer: &str, option: IndexRecordOption| {
            let indexing =
                TextFieldIndexing::default().set_tokenizer(tokenizer).set_index_option(option).set_fieldnorms(false);
            TextOptions::default().set_indexing_options(indexing)
        };
        let term_options = |tokenizer: &str| text_options(tokenizer, IndexRecordOption::Basic);
        for keyword in Keyword::ALL {
            let tokenizer = if *keyword == Keyword::Exact { "raw" } else { WHOLE };
            schema.add_text_field(keyword.name(), term_options(tokenizer));
        }
        for number in Number::ALL {
            schema.add_i64_field(number.name(), FAST);
        }
        for facet in Facet::ALL {
            schema.add_text_field(facet.column(), TextOptions::default().set_fast("raw"));
        }
        for key in Key::ALL {
            schema.add_u64_field(key.name(), FAST | INDEXED);
        }
        schema.add_u64_field(ID, FAST | INDEXED);
        schema.add_text_field(CONTENT, term_options(TEXT));
        schema.add_text_field(MESSAGE, text_options(MESSAGES, IndexRecordOption::WithFreqsAndPositions));
        schema.build()
    }

    pub fn from_schema(schema: &Schema) -> tantivy::Result<Self> {
        let keywords = Keyword::ALL.iter().map(|keyword| schema.get_field(keyword.name()));
        let numbers = Number::ALL.iter().map(|number| schema.get_field(number.name()));
        let facets = Facet::ALL.iter().map(|facet| schema.get_field(facet.column()));
        let keys = Key::ALL.iter().map(|key| schema.get_field(key.name()));
        Ok(Self {
            keywords: keywords.collect::<Result<_, _>>()?,
            numbers: numbers.collect::<Result<_, _>>()?,
            facets: facets.collect::<Result<_, _>>()?,
            keys: keys.collect::<Result<_, _>>()?,
            id: schema.get_field(ID)?,
            content: schema.get_field(CONTENT)?,
            message: schema.get_field(MESSAGE)?,
        })
    }

    pub fn keyword(&self, keyword: Keyword) -> Field {
        self.keywords[keyword as usize]
    }

    pub fn number(&self, number: Number) -> Field {
        self.numbers[number as usize]
    }

    pub fn key(&self, key: Key) -> Field {
        self.keys[key as usize]
    }

    pub fn facet(&self, facet: Facet) -> Field {
        self.facets[Facet::ALL.iter().position(|other| *other == facet).unwrap_or_default()]
    }
}

impl Document {
    /// Converts the document. The content is read before the messages, so that the manifest is parsed once.
    pub fn to_tantivy(&self, columns: &Columns) -> TantivyDocument {
        let mut document = TantivyDocument::new();
        document.add_u64(columns.id, self.id);
        for (keyword, value) in &self.keywords {
            document.add_text(columns.keyword(*keyword), value);
            if *keyword != Keyword::Qualified {
                document.add_text(columns.keyword(Keyword::Exact), format!("{}={value}", keyword.name()));
            }
        }
        // Names are searched in memory ([`super::names`]), because there are about as many as objects.
        let others = self.bare_word_values(false).filter(|(keyword, _)| *keyword != Keyword::Name);
        others.for_each(|(_, value)| document.add_text(columns.keyword(Keyword::Anything), value));
        self.present_columns().for_each(|name| document.add_text(columns.keyword(Keyword::Has), name));
        self.numbers.iter().for_each(|(number, value)| document.add_i64(columns.number(*number), *value));
        self.facets.iter().for_each(|(facet, value)| document.add_text(columns.facet(*facet), value));
        self.keys.iter().for_each(|(key, value)| document.add_u64(columns.key(*key), *value));
        // Positions and frequencies are not indexed, and most words of a manifest are repeated.
        document.add_text(columns.content, unique_chunks(self.content()));
        self.messages().iter().for_each(|message| document.add_text(columns.message, message));
        document
    }
}
