//! The columns of the text index.

use tantivy::schema::{FAST, Field, INDEXED, IndexRecordOption, Schema, TextFieldIndexing, TextOptions};

use super::tokens::{SAID, TEXT, WHOLE};
use crate::RecordKey;

macro_rules! word_columns {
    ($( $(#[$doc:meta])* $name:ident = $text:literal ),+ $(,)?) => {
        /// Columns that hold whole strings, lower case (but [`Word::Exact`]).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Word { $( $(#[$doc])* $name, )+ }

        impl Word {
            pub const ALL: &'static [Word] = &[ $( Word::$name, )+ ];

            /// Name in the schema.
            pub fn name(self) -> &'static str {
                match self { $( Word::$name => $text, )+ }
            }
        }
    };
}

word_columns! {
    Kind = "kind",
    Group = "group",
    ApiVersion = "apiVersion",
    Name = "name",
    Namespace = "namespace",
    Uid = "uid",
    Cluster = "cluster",
    /// `kind/name`
    Owner = "owner",
    Node = "node",
    Ip = "ip",
    Status = "status",
    Reason = "reason",
    Phase = "phase",
    /// `type=status`
    Condition = "condition",
    Image = "image",
    ImageTag = "image.tag",
    Digest = "digest",
    Type = "type",
    /// `kind/name` and `kind/namespace/name`
    About = "about",
    /// `kind/name` and `kind/namespace/name`: because of what something happened that an event of the journal tells.
    Cause = "cause",
    /// `kind/name`, in the object's own namespace
    Uses = "uses",
    /// `name`, and `namespace/name` where it has one; so are the three below it.
    Policy = "policy",
    Binding = "binding",
    Work = "work",
    /// Of works, as they record it.
    Override = "override",
    /// Clusters; of bindings and works.
    On = "on",
    Evicting = "evicting",
    Health = "health",
    /// States `is:` asks for.
    Is = "is",
    /// `key=value`
    Label = "label",
    LabelKey = "label.key",
    Annotation = "ann",
    AnnotationKey = "ann.key",
    /// Names of the columns the object has something in.
    Has = "has",
    /// `namespace/name`, for words with a slash.
    Qualified = "qualified",
    /// Everything but the name that a bare word is looked up in by substring. Few of these strings are an object's own: a
    /// substring is searched in every one there is.
    Anything = "anything",
    /// `column=Value` with its case kept, for `:=`.
    Exact = "exact",
}

macro_rules! number_columns {
    ($( $(#[$doc:meta])* $name:ident = $text:literal ),+ $(,)?) => {
        /// Columns that hold numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Number { $( $(#[$doc])* $name, )+ }

        impl Number {
            pub const ALL: &'static [Number] = &[ $( Number::$name, )+ ];

            pub fn name(self) -> &'static str {
                match self { $( Number::$name => $text, )+ }
            }
        }
    };
}

number_columns! {
    Restarts = "restarts",
    Replicas = "replicas",
    Ready = "ready",
    Exit = "exit",
    Count = "count",
    Created = "created",
    Changed = "changed",
    LastSeen = "last",
    /// Only of what objects were before: the text index holds none.
    Deleted = "deleted",
    CpuRequest = "cpu.req",
    CpuLimit = "cpu.limit",
    MemoryRequest = "mem.req",
    MemoryLimit = "mem.limit",
}

/// Columns with facets and sorting: their values are kept as they are, beside the terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Facet {
    Cluster,
    Kind,
    Namespace,
    Status,
    Node,
    Reason,
    Image,
    Type,
    LabelKey,
    Name,
    /// `cluster␟group/resource␟namespace`: what rights are decided by.
    Scope,
}

impl Facet {
    pub const ALL: &'static [Facet] = &[
        Facet::Cluster,
        Facet::Kind,
        Facet::Namespace,
        Facet::Status,
        Facet::Node,
        Facet::Reason,
        Facet::Image,
        Facet::Type,
        Facet::LabelKey,
        Facet::Name,
        Facet::Scope,
    ];

    /// Name in the schema.
    pub fn column(self) -> &'static str {
        match self {
            Facet::Cluster => "f_cluster",
            Facet::Kind => "f_kind",
            Facet::Namespace => "f_namespace",
            Facet::Status => "f_status",
            Facet::Node => "f_node",
            Facet::Reason => "f_reason",
            Facet::Image => "f_image",
            Facet::Type => "f_type",
            Facet::LabelKey => "f_label",
            Facet::Name => "f_name",
            Facet::Scope => "f_scope",
        }
    }

    /// Name in the query language.
    pub fn field(self) -> &'static str {
        match self {
            Facet::Cluster => "cluster",
            Facet::Kind => "kind",
            Facet::Namespace => "namespace",
            Facet::Status => "status",
            Facet::Node => "node",
            Facet::Reason => "reason",
            Facet::Image => "image",
            Facet::Type => "type",
            Facet::LabelKey => "label",
            Facet::Name => "name",
            Facet::Scope => "scope",
        }
    }
}

/// Columns that hold keys of objects: their own, and of those they point to in their cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// By uid, and by kind, namespace and name.
    Own,
    Owner,
    Uses,
    About,
}

impl Key {
    pub const ALL: &'static [Key] = &[Key::Own, Key::Owner, Key::Uses, Key::About];

    /// Name in the schema.
    pub fn name(self) -> &'static str {
        match self {
            Key::Own => "k_own",
            Key::Owner => "k_owner",
            Key::Uses => "k_uses",
            Key::About => "k_about",
        }
    }

    /// Of the object with a uid.
    pub fn of_uid(cluster: &str, uid: &str) -> u64 {
        key(&[cluster, uid])
    }

    /// Of the object with a name. The kind's case is of no matter.
    pub fn of_name(cluster: &str, kind: &str, namespace: &str, name: &str) -> u64 {
        key(&[cluster, &kind.to_lowercase(), namespace, name])
    }
}

/// Small, and the same for ever: the text index keeps it. That two of two million objects share one is less likely than
/// one in ten million, and a reader's rights are looked at beside it.
fn key(parts: &[&str]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(parts.join(&SCOPE_SEPARATOR.to_string()).as_bytes())
}

/// Separates the parts of [`Facet::Scope`]; in no name.
pub const SCOPE_SEPARATOR: char = '\u{1f}';

/// What an object has in [`Facet::Scope`].
pub fn scope_of(key: &RecordKey) -> String {
    let gvr = key.resource();
    let group_resource = format!("{}/{}", gvr.group, gvr.resource);
    [key.cluster().as_str(), &group_resource, &key.namespace].join(&SCOPE_SEPARATOR.to_string())
}

/// The schema's fields by column.
#[derive(Debug, Clone)]
pub struct Columns {
    words: Vec<Field>,
    numbers: Vec<Field>,
    facets: Vec<Field>,
    keys: Vec<Field>,
    /// Record id, to delete and to fetch by.
    pub id: Field,
    /// The whole manifest.
    pub content: Field,
    /// Messages of events, conditions and containers, with where each word is.
    pub message: Field,
}

/// The column of record ids.
pub const ID: &str = "id";
const CONTENT: &str = "content";
const MESSAGE: &str = "message";

impl Columns {
    pub fn schema() -> Schema {
        let mut schema = Schema::builder();
        let placed = |tokenizer: &str, option: IndexRecordOption| {
            let indexing =
                TextFieldIndexing::default().set_tokenizer(tokenizer).set_index_option(option).set_fieldnorms(false);
            TextOptions::default().set_indexing_options(indexing)
        };
        let terms = |tokenizer: &str| placed(tokenizer, IndexRecordOption::Basic);
        for word in Word::ALL {
            let tokenizer = if *word == Word::Exact { "raw" } else { WHOLE };
            schema.add_text_field(word.name(), terms(tokenizer));
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
        schema.add_text_field(CONTENT, terms(TEXT));
        schema.add_text_field(MESSAGE, placed(SAID, IndexRecordOption::WithFreqsAndPositions));
        schema.build()
    }

    pub fn of(schema: &Schema) -> tantivy::Result<Self> {
        let words = Word::ALL.iter().map(|word| schema.get_field(word.name()));
        let numbers = Number::ALL.iter().map(|number| schema.get_field(number.name()));
        let facets = Facet::ALL.iter().map(|facet| schema.get_field(facet.column()));
        let keys = Key::ALL.iter().map(|key| schema.get_field(key.name()));
        Ok(Self {
            words: words.collect::<Result<_, _>>()?,
            numbers: numbers.collect::<Result<_, _>>()?,
            facets: facets.collect::<Result<_, _>>()?,
            keys: keys.collect::<Result<_, _>>()?,
            id: schema.get_field(ID)?,
            content: schema.get_field(CONTENT)?,
            message: schema.get_field(MESSAGE)?,
        })
    }

    pub fn word(&self, word: Word) -> Field {
        self.words[word as usize]
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
