//! The columns of a document, by the names that every engine's schema gives them.

use crowsnest_apimachinery::names::ObjectKey;
use crowsnest_store::RecordKey;
use std::collections::BTreeSet;

macro_rules! columns {
    ($(#[$about:meta])* $columns:ident { $( $(#[$doc:meta])* $name:ident = $text:literal ),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $columns { $( $(#[$doc])* $name, )+ }

        impl $columns {
            pub const ALL: &'static [$columns] = &[ $( $columns::$name, )+ ];

            /// Name in the schema.
            pub fn name(self) -> &'static str {
                match self { $( $columns::$name => $text, )+ }
            }
        }
    };
}

columns! {
    /// Columns with complete strings as terms, in lower case except in [`Keyword::Exact`]: untokenized fields in tantivy,
    /// `keyword` fields in OpenSearch.
    Keyword {
        Kind = "kind",
        Group = "group",
        ApiVersion = "apiVersion",
        Name = "name",
        Namespace = "namespace",
        Uid = "uid",
        Cluster = "cluster",
        /// `kind/name` and `kind.group/name`
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
        /// The objects that an Event is about: its involved and its related object.
        ///
        /// `kind/name`, `kind.group/name`, and both with `namespace/` before the name; also for the next two columns.
        About = "about",
        /// Cause of a journal event.
        Cause = "cause",
        Uses = "uses",
        /// `name`, and `namespace/name` if there is a namespace; also for the next three columns.
        Policy = "policy",
        Binding = "binding",
        Work = "work",
        /// Override policies that were applied to a Work.
        Override = "override",
        /// Clusters to which a binding or Work is scheduled.
        On = "on",
        /// Clusters from which a binding is being evicted.
        Evicting = "evicting",
        /// `healthy`, `unhealthy` or `unknown`, of a binding or Work in any cluster.
        Health = "health",
        /// States for `is:`.
        Is = "is",
        /// `key=value`
        Label = "label",
        LabelKey = "label.key",
        Annotation = "ann",
        AnnotationKey = "ann.key",
        /// Names of the columns with values.
        Has = "has",
        /// `namespace/name`, for words with a slash.
        Qualified = "qualified",
        /// All strings in which bare words are searched by substring, except the name. Most of these strings are
        /// shared by many objects; a substring search visits each distinct string.
        Anything = "anything",
        /// `column=Value` with its case kept, for `:=`.
        Exact = "exact",
    }
}

columns! {
    /// Columns with numbers.
    Number {
        Restarts = "restarts",
        Replicas = "replicas",
        Ready = "ready",
        Exit = "exit",
        Count = "count",
        Created = "created",
        Changed = "changed",
        LastSeen = "last",
        /// Only in earlier versions, which the text index does not contain. Unix seconds.
        Deleted = "deleted",
        CpuRequest = "cpu.req",
        CpuLimit = "cpu.limit",
        MemoryRequest = "mem.req",
        MemoryLimit = "mem.limit",
    }
}

impl Number {
    /// True for amounts, which can be summed; false for times and codes. An object has at most one value of an amount.
    pub fn is_amount(self) -> bool {
        match self {
            Number::Restarts | Number::Replicas | Number::Ready | Number::Count => true,
            Number::CpuRequest | Number::CpuLimit | Number::MemoryRequest | Number::MemoryLimit => true,
            Number::Exit | Number::Created | Number::Changed | Number::LastSeen | Number::Deleted => false,
        }
    }
}

/// Columns for facets and sorting, with values in their original case in addition to the terms of [`Keyword`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Facet {
    Cluster,
    /// `kind.group`; shown without the group unless it distinguishes kinds of one name.
    Kind,
    Namespace,
    Status,
    Node,
    Reason,
    Image,
    Type,
    LabelKey,
    Name,
    /// `cluster␟group/resource␟namespace`, by which permissions are evaluated.
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

/// Columns with keys of objects: the object's own keys, and those of the objects that it references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The object's own keys: by uid, and by group, kind, namespace and name.
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

    /// Key of the object with a uid.
    pub fn from_uid(cluster: &str, uid: &str) -> u64 {
        hash_key(&[cluster, uid])
    }

    /// Key of an object by group, kind, namespace and name. The kind is case-insensitive.
    pub fn from_object(cluster: &str, object: &ObjectKey) -> u64 {
        let namespace = object.namespace.as_deref().unwrap_or_default();
        hash_key(&[cluster, &object.group, &object.kind.to_lowercase(), namespace, &object.name])
    }
}

/// Hash of a key; stable, because it is stored in the text index. The probability that two of two million objects
/// collide is below one in ten million, and permissions are checked separately.
fn hash_key(parts: &[&str]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(parts.join(&SCOPE_SEPARATOR.to_string()).as_bytes())
}

/// Separates the parts of [`Facet::Scope`] and of scope terms; does not occur in names.
pub const SCOPE_SEPARATOR: char = '\u{1f}';

/// Value of [`Facet::Scope`] for an object.
pub fn scope_of(key: &RecordKey) -> String {
    let gvr = key.resource();
    let group_resource = format!("{}/{}", gvr.group, gvr.resource);
    [key.cluster().as_str(), &group_resource, &key.namespace].join(&SCOPE_SEPARATOR.to_string())
}

/// Scope terms of an object, for engines that filter by permissions in a query: a caller may list the object if the
/// caller has one of its terms ([`crate::authorization::ScopeTerms`]).
///
/// With the separator written as `|`: `cluster`, `cluster||namespace`, `cluster|group/resource`,
/// `cluster|group/resource|namespace`, `cluster|group/resource|namespace|name`, `cluster|group/resource||name`. For a
/// cluster-scoped object, there are only the terms without a namespace. The last one is for rules that name an object in
/// every namespace.
///
/// Arguments are the object's value of [`Facet::Scope`] and its name. Without a scope there are no terms, so no caller may list it.
pub fn scope_terms(scope: &str, name: &str) -> BTreeSet<String> {
    let parts: Vec<&str> = scope.split(SCOPE_SEPARATOR).collect();
    let [cluster, resource, namespace] = parts.as_slice() else { return BTreeSet::new() };
    let mut terms = BTreeSet::from([
        (*cluster).to_owned(),
        scope_term(&[cluster, resource]),
        scope_term(&[cluster, resource, namespace, name]),
        scope_term(&[cluster, resource, "", name]),
    ]);
    if !namespace.is_empty() {
        terms.extend([scope_term(&[cluster, "", namespace]), scope_term(&[cluster, resource, namespace])]);
    }
    terms
}

/// Joins the parts of a scope term: cluster, group and resource, namespace, name.
pub fn scope_term(parts: &[&str]) -> String {
    parts.join(&SCOPE_SEPARATOR.to_string())
}
