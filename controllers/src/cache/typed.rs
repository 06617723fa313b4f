//! Cache of a limited number of typed objects that several controllers read, so that each version is decoded once.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_apimachinery::unstructured;
use lru::LruCache;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;
use crate::runtime::context::decode;

struct TypedObject<T> {
    uid: String,
    version: String,
    typed: Arc<T>,
}

pub struct TypedCache<T> {
    objects: Mutex<LruCache<NamespacedName, TypedObject<T>>>,
}

impl<T: DeserializeOwned> TypedCache<T> {
    /// Creates a cache of at most `capacity` objects, at least one.
    pub fn new(capacity: usize) -> Self {
        TypedCache { objects: Mutex::new(LruCache::new(NonZeroUsize::new(capacity).unwrap_or(NonZeroUsize::MIN))) }
    }

    /// The typed form of an object, decoded unless its version is cached.
    pub fn get_or_decode(&self, object: &Value) -> Result<Arc<T>, Error> {
        let key = unstructured::key(object);
        let (uid, version) = (unstructured::uid(object), unstructured::resource_version(object));
        if let Some(entry) = self.objects.lock().get(&key)
            && !version.is_empty()
            && entry.version == version
            && entry.uid == uid
        {
            return Ok(Arc::clone(&entry.typed));
        }
        let typed: Arc<T> = Arc::new(decode(object)?);
        let decoded = TypedObject { uid: uid.to_owned(), version: version.to_owned(), typed: Arc::clone(&typed) };
        self.objects.lock().put(key, decoded);
        Ok(typed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn version_is_decoded_once() {
        let cache: TypedCache<Value> = TypedCache::new(1);
        let object =
            |uid: &str, version: &str| json!({"metadata": {"name": "a", "uid": uid, "resourceVersion": version}});
        let first = cache.get_or_decode(&object("1", "7")).expect("JSON");
        assert!(Arc::ptr_eq(&first, &cache.get_or_decode(&object("1", "7")).expect("JSON")));
        for (uid, version) in [("1", "8"), ("2", "8"), ("2", ""), ("2", "")] {
            let other = cache.get_or_decode(&object(uid, version)).expect("JSON");
            assert_eq!(*other, object(uid, version));
            assert!(!Arc::ptr_eq(&first, &other));
        }
    }
}
