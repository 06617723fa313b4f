//! Stored form of one object: JSON without `apiVersion`, `kind` and `metadata.resourceVersion`, compressed if it is
//! large.
//!
//! Layout: one byte (0 plain, 1 zstd), four bytes (little endian) with the offset of the first member of `metadata`
//! in the JSON, the lengths of `apiVersion` and `kind` (one byte each), both texts, then the JSON. The omitted
//! fields are spliced in on reads, so that objects are served, alone or as list items, without being parsed.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::thread::LocalKey;

use bytes::Bytes;
use crowsnest_apimachinery::nesting;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use zstd::bulk::{Compressor, Decompressor};

use crate::error::{Error, Result};
use crate::storage::Revision;

const HEADER_BYTES: usize = 7;
/// Maximum size of an object in bytes of JSON, which is etcd's default: every object can be moved to etcd, and readers of lists can
/// limit their memory.
pub const MAX_OBJECT_BYTES: usize = 3 << 19;
/// Minimum size in bytes of compressed objects: for smaller ones, the gain is less than the cost.
const MIN_COMPRESSED_BYTES: usize = 1024;

/// One object as kept in memory and on disk. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body(Bytes);

impl Body {
    /// Encodes an object without its `metadata.resourceVersion`. Fails with [`Error::TooDeep`] or
    /// [`Error::TooLarge`] for objects that readers could not decode.
    pub fn encode(object: &Value) -> Result<Self> {
        if nesting::exceeds_depth(object, nesting::MAX_DEPTH) {
            return Err(Error::TooDeep);
        }
        let corrupt = |e: serde_json::Error| Error::Corrupt(e.to_string());
        let members = object.as_object().ok_or_else(|| Error::Corrupt("not an object".into()))?;
        let mut json = Vec::with_capacity(512);
        let mut metadata_at = 0u32;
        json.push(b'{');
        for (key, value) in members.iter().filter(|(key, _)| *key != "apiVersion" && *key != "kind") {
            if json.len() > 1 {
                json.push(b',');
            }
            serde_json::to_writer(&mut json, key).map_err(corrupt)?;
            json.push(b':');
            match value {
                Value::Object(metadata) if key == "metadata" => {
                    json.push(b'{');
                    metadata_at = json.len() as u32;
                    let mut first = true;
                    for (name, member) in metadata.iter().filter(|(name, _)| *name != "resourceVersion") {
                        if !std::mem::take(&mut first) {
                            json.push(b',');
                        }
                        serde_json::to_writer(&mut json, name).map_err(corrupt)?;
                        json.push(b':');
                        serde_json::to_writer(&mut json, member).map_err(corrupt)?;
                    }
                    json.push(b'}');
                }
                other => serde_json::to_writer(&mut json, other).map_err(corrupt)?,
            }
        }
        json.push(b'}');
        if metadata_at == 0 {
            return Err(Error::Corrupt("no metadata".into()));
        }
        if json.len() > MAX_OBJECT_BYTES {
            return Err(Error::TooLarge { size: json.len() });
        }
        let text = |key: &str| members.get(key).and_then(Value::as_str).unwrap_or_default();
        Ok(Self(pack(&json, metadata_at, text("apiVersion"), text("kind"))?.into()))
    }

    /// Encodes JSON text: an object without `apiVersion`, `kind` and `metadata.resourceVersion` that starts with its
    /// `metadata`. Lets bulk writers of similar objects avoid a JSON tree for each of them.
    pub fn from_text(json: &[u8], api_version: &str, kind: &str) -> Result<Self> {
        const START: &[u8] = br#"{"metadata":{"#;
        if !json.starts_with(START) {
            return Err(Error::Corrupt("text does not start with its metadata".into()));
        }
        Ok(Self(pack(json, START.len() as u32, api_version, kind)?.into()))
    }

    /// Validates bytes that were read from a journal.
    pub fn from_stored(bytes: impl Into<Bytes>) -> Result<Self> {
        let bytes = bytes.into();
        let is_valid = bytes.len() >= HEADER_BYTES && bytes[0] <= 1 && {
            let texts = &bytes[HEADER_BYTES..];
            texts.len() >= bytes[5] as usize + bytes[6] as usize
                && std::str::from_utf8(&texts[..bytes[5] as usize + bytes[6] as usize]).is_ok()
        };
        if is_valid { Ok(Self(bytes)) } else { Err(Error::Corrupt("unknown body layout".into())) }
    }

    pub fn as_stored(&self) -> &Bytes {
        &self.0
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// The `apiVersion` in which the object was stored.
    pub fn api_version(&self) -> &str {
        std::str::from_utf8(&self.0[HEADER_BYTES..HEADER_BYTES + self.0[5] as usize]).unwrap_or_default()
    }

    pub fn kind(&self) -> &str {
        let from = HEADER_BYTES + self.0[5] as usize;
        std::str::from_utf8(&self.0[from..from + self.0[6] as usize]).unwrap_or_default()
    }

    /// True if both contain the same object, apart from the revision.
    pub fn is_same_object(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn decompress(&self) -> Result<(Cow<'_, [u8]>, usize)> {
        let at = u32::from_le_bytes([self.0[1], self.0[2], self.0[3], self.0[4]]) as usize;
        let payload = &self.0[HEADER_BYTES + self.0[5] as usize + self.0[6] as usize..];
        let plain = match self.0[0] {
            0 => Cow::Borrowed(payload),
            _ => decompress_payload(payload).map_err(|e| Error::Corrupt(e.to_string()))?.into(),
        };
        if at == 0 || at >= plain.len() {
            Err(Error::Corrupt("metadata beyond the end".into()))
        } else {
            Ok((plain, at))
        }
    }

    /// Appends the object as JSON text with its resourceVersion; with `apiVersion` and `kind` if `with_type`.
    pub fn write_json(&self, out: &mut Vec<u8>, revision: Revision, with_type: bool) -> Result<()> {
        let (plain, at) = self.decompress()?;
        out.reserve(plain.len() + 96);
        if with_type {
            out.extend_from_slice(b"{\"kind\":\"");
            out.extend_from_slice(self.kind().as_bytes());
            out.extend_from_slice(b"\",\"apiVersion\":\"");
            out.extend_from_slice(self.api_version().as_bytes());
            out.extend_from_slice(b"\",");
            out.extend_from_slice(&plain[1..at]);
        } else {
            out.extend_from_slice(&plain[..at]);
        }
        out.extend_from_slice(b"\"resourceVersion\":\"");
        out.extend_from_slice(revision.to_string().as_bytes());
        out.push(b'"');
        if plain[at] != b'}' {
            out.push(b',');
        }
        out.extend_from_slice(&plain[at..]);
        Ok(())
    }

    /// UID, owners, finalizers and deletion state, without parsing more than `metadata`.
    pub fn ownership(&self) -> Result<OwnershipMetadata> {
        let metadata: PartialMetadata = self.metadata()?;
        Ok(OwnershipMetadata {
            uid: metadata.uid,
            owners: metadata.owner_references,
            is_deleting: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers,
        })
    }

    /// `metadata.labels`, without parsing the rest.
    pub fn labels(&self) -> Result<Option<Value>> {
        Ok(self.metadata::<MetadataLabels>()?.labels)
    }

    /// Parses `metadata` only.
    fn metadata<T: DeserializeOwned>(&self) -> Result<T> {
        let (plain, at) = self.decompress()?;
        // The brace before its first member.
        let mut text = serde_json::Deserializer::from_slice(&plain[at - 1..]);
        T::deserialize(&mut text).map_err(|e| Error::Corrupt(e.to_string()))
    }

    /// Parses the object and sets its resourceVersion.
    pub fn decode(&self, revision: Revision) -> Result<Value> {
        let (plain, _) = self.decompress()?;
        let mut value: Value = serde_json::from_slice(&plain).map_err(|e| Error::Corrupt(e.to_string()))?;
        value["apiVersion"] = self.api_version().into();
        value["kind"] = self.kind().into();
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        Ok(value)
    }
}

/// Metadata of an object that the garbage collector needs; see [`Body::ownership`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnershipMetadata {
    pub uid: String,
    pub owners: Vec<OwnerReference>,
    pub is_deleting: bool,
    pub finalizers: Vec<String>,
}

/// An entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub block_owner_deletion: Option<bool>,
}

#[derive(Deserialize)]
struct MetadataLabels {
    labels: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PartialMetadata {
    uid: String,
    owner_references: Vec<OwnerReference>,
    deletion_timestamp: Option<String>,
    finalizers: Vec<String>,
}

/// zstd's fastest level: objects are read far more often than written.
const COMPRESSION_LEVEL: i32 = 1;
/// Limit of decompressed bytes, larger than any object that the storage accepts.
const MAX_DECOMPRESSED_BYTES: u64 = 64 << 20;

// A zstd context is much larger than most objects and expensive to create, so each thread reuses one.
thread_local! {
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Calls `run` with the thread's context, which is created on first use.
fn with_context<C, T>(
    slot: &'static LocalKey<RefCell<Option<C>>>,
    create: impl FnOnce() -> io::Result<C>,
    run: impl FnOnce(&mut C) -> io::Result<T>,
) -> io::Result<T> {
    slot.with_borrow_mut(|slot| {
        let mut context = match slot.take() {
            Some(context) => context,
            None => create()?,
        };
        let result = run(&mut context);
        *slot = Some(context);
        result
    })
}

fn compress(json: &[u8]) -> io::Result<Vec<u8>> {
    with_context(&COMPRESSOR, || Compressor::new(COMPRESSION_LEVEL), |context| context.compress(json))
}

fn decompress_payload(payload: &[u8]) -> io::Result<Vec<u8>> {
    let size_error = || io::Error::new(io::ErrorKind::InvalidData, "a compressed object does not state its size");
    let size = zstd::zstd_safe::get_frame_content_size(payload).ok().flatten();
    let size = size.filter(|size| *size <= MAX_DECOMPRESSED_BYTES).ok_or_else(size_error)?;
    with_context(&DECOMPRESSOR, Decompressor::new, |context| context.decompress(payload, size as usize))
}

fn pack(json: &[u8], metadata_at: u32, api_version: &str, kind: &str) -> Result<Vec<u8>> {
    let length = |text: &str| u8::try_from(text.len()).map_err(|_| Error::Corrupt(format!("{text:?} is too long")));
    let lengths = [length(api_version)?, length(kind)?];
    let compressed = match json.len() >= MIN_COMPRESSED_BYTES {
        true => compress(json).ok().filter(|compressed| compressed.len() < json.len()),
        false => None,
    };
    let payload = compressed.as_deref().unwrap_or(json);
    let mut out = Vec::with_capacity(HEADER_BYTES + api_version.len() + kind.len() + payload.len());
    out.push(u8::from(compressed.is_some()));
    out.extend_from_slice(&metadata_at.to_le_bytes());
    out.extend_from_slice(&lengths);
    out.extend_from_slice(api_version.as_bytes());
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(payload);
    Ok(out)
}
