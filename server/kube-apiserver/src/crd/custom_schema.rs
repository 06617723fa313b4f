//! Schemas of custom resources, shared by all servers in the process.
//!
//! Each distinct schema is kept once, compressed. It is compiled when an object of its kind is read or written.
//! Compiled schemas are cached within a memory limit, because most CRDs of a large installation have few objects or
//! none.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use crowsnest_schema::compressed::{CompressedSchema, ContentHash, SchemaText};
use crowsnest_schema::{Schema, SchemaRef};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;
use serde_json::Value;

use super::cel::Rules;
use super::embedded;
use crate::openapi::publishes_unchanged;

/// Maximum estimated memory of all compiled schemas in the process, in bytes. One schema is cached even if it alone
/// exceeds the limit, because it would otherwise be compiled for each object.
const MAX_COMPILED_BYTES: u32 = 128 << 20;
/// Estimated memory of each JSON object in a schema, in bytes: its tree node and its typed form.
const BYTES_PER_OBJECT: usize = 1_300;
/// Time without use after which a compiled schema is dropped.
const IDLE_TIME: Duration = Duration::from_secs(600);

/// All schemas in use, by hash.
static SCHEMAS: LazyLock<Mutex<HashMap<ContentHash, Weak<CustomSchema>>>> = LazyLock::new(Mutex::default);

/// Compiled schemas that were used recently, by hash.
static COMPILED: LazyLock<Cache<ContentHash, Arc<CompiledSchema>>> = LazyLock::new(|| {
    Cache::builder()
        .max_capacity(u64::from(MAX_COMPILED_BYTES))
        .weigher(|_: &ContentHash, schema: &Arc<CompiledSchema>| schema.weight)
        .time_to_idle(IDLE_TIME)
        .eviction_policy(EvictionPolicy::lru())
        .build()
});

/// Frees the memory of compiled schemas that have been idle. The cache does it by itself only while it is used.
pub fn drop_idle() {
    COMPILED.run_pending_tasks();
}

/// The `openAPIV3Schema` of a version of a CRD.
#[derive(Debug)]
pub struct CustomSchema {
    source: CompressedSchema,
}

/// A schema in the forms in which objects are decoded and validated.
#[derive(Debug)]
pub struct CompiledSchema {
    /// The schema without descriptions.
    pub structural: Value,
    pub typed: SchemaRef,
    pub rules: Option<Rules>,
    /// True if the schema contains embedded resources.
    pub has_embedded_resources: bool,
    /// Estimated memory in bytes.
    weight: u32,
}

impl CustomSchema {
    /// The shared schema with this content.
    pub fn intern(schema: &Value) -> Arc<Self> {
        let text = SchemaText::new(schema);
        let hash = text.hash();
        if let Some(existing) = SCHEMAS.lock().get(&hash).and_then(Weak::upgrade) {
            return existing;
        }
        // The lock is not held during the compression, which takes time. Another caller may create the schema
        // meanwhile.
        let new = Arc::new(Self { source: CompressedSchema::new(&text, hash, publishes_unchanged) });
        let mut schemas = SCHEMAS.lock();
        match schemas.get(&hash).and_then(Weak::upgrade) {
            Some(existing) => {
                // The new schema takes the lock when it is dropped.
                drop(schemas);
                existing
            }
            None => {
                schemas.insert(hash, Arc::downgrade(&new));
                new
            }
        }
    }

    /// The schema as written in the CRD.
    pub fn source(&self) -> &CompressedSchema {
        &self.source
    }

    /// The compiled schema, from the cache if it was used recently.
    pub fn compile(&self) -> Arc<CompiledSchema> {
        COMPILED.get_with_by_ref(self.source.hash(), || Arc::new(CompiledSchema::new(self.source.decode())))
    }
}

impl Drop for CustomSchema {
    fn drop(&mut self) {
        let hash = self.source.hash();
        let mut schemas = SCHEMAS.lock();
        if schemas.get(hash).is_some_and(|existing| existing.strong_count() == 0) {
            schemas.remove(hash);
            COMPILED.invalidate(hash);
        }
    }
}

impl CompiledSchema {
    /// Normalizes the metadata of embedded resources.
    pub fn normalize_embedded_resources(&self, object: &mut Value) {
        if self.has_embedded_resources {
            embedded::normalize(&self.structural, object);
        }
    }

    fn new(mut schema: Value) -> Self {
        remove_descriptions(&mut schema);
        let weight = count_objects(&schema).saturating_mul(BYTES_PER_OBJECT);
        Self {
            typed: Schema::for_custom_resource(&schema),
            rules: Rules::compile(&schema),
            has_embedded_resources: embedded::contains_embedded_resources(&schema),
            structural: schema,
            weight: u32::try_from(weight).map_or(MAX_COMPILED_BYTES, |weight| weight.min(MAX_COMPILED_BYTES)),
        }
    }
}

/// Removes the descriptions of a schema and its children. Properties and defaults named `description` are kept.
fn remove_descriptions(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.remove("description");
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(remove_descriptions);
    }
    for key in ["items", "additionalProperties", "not"] {
        fields.get_mut(key).into_iter().for_each(remove_descriptions);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        fields.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().for_each(remove_descriptions);
    }
}

fn count_objects(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(count_objects).sum::<usize>(),
        Value::Array(items) => items.iter().map(count_objects).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(field: &str) -> Value {
        json!({"type": "object", "description": "d", "properties": {
            field: {"type": "string", "description": "d"},
            "description": {"type": "object", "description": "d", "default": {"description": "kept"}},
            "list": {"type": "array", "description": "d", "items": {"type": "string", "description": "d"}},
            "map": {"type": "object", "additionalProperties": {"description": "d", "anyOf": [{"description": "d"}]}},
        }})
    }

    #[test]
    fn equal_schemas_are_shared_until_the_last_is_dropped() {
        let source = schema("sharedUntilDropped");
        let hash = SchemaText::new(&source).hash();
        let (first, second) = (CustomSchema::intern(&source), CustomSchema::intern(&source.clone()));
        assert!(Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&first.compile(), &second.compile()));
        assert!(!Arc::ptr_eq(&first, &CustomSchema::intern(&schema("another"))));
        drop(first);
        assert!(SCHEMAS.lock().contains_key(&hash) && COMPILED.contains_key(&hash));
        drop(second);
        assert!(!SCHEMAS.lock().contains_key(&hash) && !COMPILED.contains_key(&hash));
    }

    #[test]
    fn no_schema_is_too_large_for_the_cache() {
        let objects = usize::try_from(MAX_COMPILED_BYTES).unwrap() / BYTES_PER_OBJECT + 1;
        let compiled = CompiledSchema::new(json!({"type": "object", "anyOf": vec![json!({}); objects]}));
        assert_eq!(compiled.weight, MAX_COMPILED_BYTES);
    }

    #[test]
    fn compiled_schemas_have_no_descriptions_but_the_source_has() {
        let custom = CustomSchema::intern(&schema("described"));
        let compiled = custom.compile();
        let expected = json!({"type": "object", "properties": {
            "described": {"type": "string"},
            "description": {"type": "object", "default": {"description": "kept"}},
            "list": {"type": "array", "items": {"type": "string"}},
            "map": {"type": "object", "additionalProperties": {"anyOf": [{}]}},
        }});
        assert_eq!(compiled.structural, expected);
        assert!(compiled.typed.field("described").is_some());
        assert_eq!(usize::try_from(compiled.weight), Ok(10 * BYTES_PER_OBJECT));
        assert_eq!(custom.source().decode(), schema("described"));
    }
}
