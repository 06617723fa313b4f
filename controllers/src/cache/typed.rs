//! Cache of typed objects that several controllers read, so that each version is decoded once. Limited in number.

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

struct Decoded<T> {
    uid: String,
    version: String,
    typed: Arc<T>,
}

pub struct Decodings<T> {
    known: Mutex<LruCache<NamespacedName, Decoded<T>>>,
}

impl<T: DeserializeOwned> Decodings<T> {
    /// Creates a cache of `most` objects, at least one.
    pub fn new(most: usize) -> Self {
        Decodings { known: Mutex::new(LruCache::new(NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN))) }
    }

    /// The object's typed form.
    pub fn of(&self, object: &Value) -> Result<Arc<T>, Error> {
        let key = unstructured::key(object);
        let (uid, version) = (unstructured::uid(object), unstructured::resource_version(object));
        if let Some(known) = self.known.lock().get(&key)
            && !version.is_empty()
            && known.version == version
            && known.uid == uid
        {
            return Ok(Arc::clone(&known.typed));
        }
        let typed: Arc<T> = Arc::new(decode(object)?);
        let decoded = Decoded { uid: uid.to_owned(), version: version.to_owned(), typed: Arc::clone(&typed) };
        self.known.lock().put(key, decoded);
        Ok(typed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn version_is_decoded_once() {
        let decodings: Decodings<Value> = Decodings::new(1);
        let object =
            |uid: &str, version: &str| json!({"metadata": {"name": "a", "uid": uid, "resourceVersion": version}});
        let first = decodings.of(&object("1", "7")).expect("JSON");
        assert!(Arc::ptr_eq(&first, &decodings.of(&object("1", "7")).expect("JSON")));
        for (uid, version) in [("1", "8"), ("2", "8"), ("2", ""), ("2", "")] {
            let other = decodings.of(&object(uid, version)).expect("JSON");
            assert_eq!(*other, object(uid, version));
            assert!(!Arc::ptr_eq(&first, &other));
        }
    }
}
