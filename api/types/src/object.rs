//! Macros `kinds!`, `api_structs!` and `string_enum!`, with which the modules of API groups declare kinds, structures
//! and enumerations, and the `Kind` trait from which CRD manifests are generated.

/// Scope of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    Namespaced,
    Cluster,
}

impl Scope {
    /// The scope of an object by its namespace, which is empty for a cluster-scoped one.
    pub fn from_namespace(namespace: &str) -> Self {
        if namespace.is_empty() { Self::Cluster } else { Self::Namespaced }
    }
}

/// Properties of a top-level kind in addition to `k8s_openapi::Resource`.
pub trait Kind: k8s_openapi::Resource + k8s_openapi::Metadata {
    const SCOPE: Scope;
    /// Description of the kind.
    const DESCRIPTION: &'static str;

    /// Schemas of the top-level fields other than `metadata`, by JSON name.
    fn field_schemas(generator: &mut schemars::SchemaGenerator) -> Vec<(&'static str, schemars::Schema)>;
}

/// Schema of Go's `int` and `uint`: an integer without a format.
pub(crate) fn plain_integer(_generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "integer" })
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares the top-level kinds of a group and version: the struct with its metadata and fields, its serde form (with
/// `apiVersion` and `kind`), and the `k8s_openapi` traits that make `kube::Api` work with it. Each kind is its name,
/// scope, plural and fields.
///
/// A field marked `skip` is omitted from the serialized form while it is empty.
macro_rules! kinds {
    (
        $group:literal, $version:literal;
        $(
            $(#[doc = $doc:literal])*
            $name:ident($scope:ident, $plural:literal) { $( $field:ident $(($skip:ident))? : $ty:ty ),* $(,)? }
        )+
    ) => {
        $(
            $(#[doc = $doc])*
            #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
            #[serde(default)]
            pub struct $name {
                pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
                $( pub $field: $ty, )*
            }

            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    use serde::ser::SerializeMap as _;
                    let mut map = serializer.serialize_map(None)?;
                    map.serialize_entry("apiVersion", <Self as k8s_openapi::Resource>::API_VERSION)?;
                    map.serialize_entry("kind", <Self as k8s_openapi::Resource>::KIND)?;
                    map.serialize_entry("metadata", &self.metadata)?;
                    $( kinds!(@entry map, self, $field $(, $skip)?); )*
                    map.end()
                }
            }

            impl k8s_openapi::Resource for $name {
                const API_VERSION: &'static str = concat!($group, "/", $version);
                const GROUP: &'static str = $group;
                const KIND: &'static str = stringify!($name);
                const VERSION: &'static str = $version;
                const URL_PATH_SEGMENT: &'static str = $plural;
                type Scope = kinds!(@scope $scope);
            }

            impl k8s_openapi::ListableResource for $name {
                const LIST_KIND: &'static str = concat!(stringify!($name), "List");
            }

            impl k8s_openapi::Metadata for $name {
                type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

                fn metadata(&self) -> &Self::Ty {
                    &self.metadata
                }

                fn metadata_mut(&mut self) -> &mut Self::Ty {
                    &mut self.metadata
                }
            }

            impl $crate::Kind for $name {
                const SCOPE: $crate::Scope = $crate::Scope::$scope;
                const DESCRIPTION: &'static str = concat!($($doc),*);

                fn field_schemas(generator: &mut schemars::SchemaGenerator) -> Vec<(&'static str, schemars::Schema)> {
                    vec![ $( (stringify!($field), generator.subschema_for::<$ty>()) ),* ]
                }
            }
        )+
    };
    (@entry $map:ident, $self:ident, $field:ident) => {
        $map.serialize_entry(stringify!($field), &$self.$field)?;
    };
    (@entry $map:ident, $self:ident, $field:ident, skip) => {
        if !$crate::object::is_default(&$self.$field) {
            $map.serialize_entry(stringify!($field), &$self.$field)?;
        }
    };
    (@scope Namespaced) => { k8s_openapi::NamespaceResourceScope };
    (@scope Cluster) => { k8s_openapi::ClusterResourceScope };
}

/// Declares an enumeration that Kubernetes represents as a string. An unknown value is kept in `Other`, so that
/// decoding and encoding never lose a value of a newer version; invalid values are rejected by the schema, not by
/// decoding.
///
/// `string_enum!(open …)` leaves the schema a plain string, `string_enum!(closed …)` makes it an enum.
macro_rules! string_enum {
    (@schema open $($value:literal),+) => { schemars::json_schema!({ "type": "string" }) };
    (@schema closed $($value:literal),+) => { schemars::json_schema!({ "type": "string", "enum": [$($value),+] }) };
    (
        $openness:ident
        $(#[$doc:meta])*
        $name:ident { $( $(#[$variant_doc:meta])* $variant:ident = $value:literal ),+ $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$variant_doc])* $variant, )+
            /// An unknown value, unchanged.
            Other(String),
        }

        impl $name {
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $value, )+
                    Self::Other(text) => text,
                }
            }

            /// True if this is a value defined by the API.
            pub fn is_known(&self) -> bool {
                !matches!(self, Self::Other(_))
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $( $value => Self::$variant, )+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                Ok(Self::from(text.as_ref()))
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                string_enum!(@schema $openness $($value),+)
            }
        }
    };
}

/// Declares structures of these APIs, with the derives and serde attributes that all of them have.
///
/// A field `name?: T` is an `Option<T>` that is omitted from the serialized form while it is `None`. A field of another
/// type that is marked `skip` is omitted while it is empty. A field without a type is a compile error.
macro_rules! api_structs {
    (@type $field:ident : $ty:ty) => {};
    (@type $field:ident ?: $optional:ty) => {};
    (@type $field:ident) => {
        compile_error! { concat!("the field `", stringify!($field), "` has no type") }
    };
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[$field_meta:meta])*
                pub $field:ident $(($skip:ident))? $(?: $optional:ty)? $(: $ty:ty)?
            ),* $(,)?
        }
    )+) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
            #[serde(rename_all = "camelCase", default)]
            pub struct $name {
                $(
                    $(#[$field_meta])*
                    // A repetition must contain a variable; `any()` is never true.
                    $( #[serde(skip_serializing_if = "crate::object::is_default")] #[cfg_attr(any(), $skip)] )?
                    $( #[serde(skip_serializing_if = "Option::is_none")] pub $field: Option<$optional>, )?
                    $( pub $field: $ty, )?
                )*
            }

            // The structure would silently lack a field without a type, since both kinds of types are optional above.
            $( api_structs! { @type $field $(?: $optional)? $(: $ty)? } )*
        )+
    };
}

pub(crate) use {api_structs, kinds, string_enum};
