//! Compression of bodies: zstd with a dictionary per kind, trained from the fleet's objects.
//!
//! Objects of a kind are similar, so a dictionary makes small bodies several times smaller and faster to
//! decompress. Samples are kept only until there are enough of them.

use super::CompressedBody;
use crate::Error;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use zstd::zstd_safe::{CCtx, CDict, DCtx, DDict, compress_bound};

const COMPRESSION_LEVEL: i32 = 1;
const MAX_DICTIONARY_BYTES: usize = 32 << 10;
const MAX_SAMPLES: usize = 128;
const MAX_SAMPLE_BYTES: usize = 1 << 20;
/// Number of contexts kept for reuse; additional callers create their own.
const MAX_IDLE_CONTEXTS: usize = 8;
/// Upper limit of a decompressed body. It is larger than any object that is accepted from a member, so a larger size
/// means corruption.
const MAX_BODY_BYTES: usize = 64 << 20;

/// Compresses and decompresses. Shared by collectors and readers.
#[derive(Default)]
pub struct Codec {
    dictionaries: RwLock<Dictionaries>,
    samples: Mutex<HashMap<String, Samples>>,
    compressors: Mutex<Vec<CCtx<'static>>>,
    decompressors: Mutex<Vec<DCtx<'static>>>,
}

#[derive(Default)]
struct Dictionaries {
    by_id: HashMap<u32, Arc<DDict<'static>>>,
    by_kind: HashMap<String, (u32, Arc<CDict<'static>>)>,
    /// Kinds whose dictionary is trained, being trained, or not worthwhile.
    decided_kinds: HashSet<String>,
}

#[derive(Default)]
struct Samples {
    bytes: Vec<u8>,
    sizes: Vec<usize>,
}

/// Samples of a kind that are sufficient for training.
pub struct TrainingSet {
    pub kind: String,
    bytes: Vec<u8>,
    sizes: Vec<usize>,
}

impl TrainingSet {
    /// Trains a dictionary; None if the samples have too little in common. Takes tens of milliseconds of CPU, so it
    /// must not run on async threads.
    pub fn train(&self) -> Option<Vec<u8>> {
        zstd::dict::from_continuous(&self.bytes, &self.sizes, MAX_DICTIONARY_BYTES).ok()
    }
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec").field("dictionaries", &self.dictionaries.read().by_id.len()).finish_non_exhaustive()
    }
}

impl Codec {
    /// Adds a stored dictionary and uses it to compress bodies of this kind from now on.
    pub fn install(&self, id: u32, kind: &str, dictionary: &[u8]) {
        let compressor = CDict::create(dictionary, COMPRESSION_LEVEL);
        let decompressor = DDict::create(dictionary);
        let mut dictionaries = self.dictionaries.write();
        dictionaries.by_id.insert(id, Arc::new(decompressor));
        dictionaries.by_kind.insert(kind.to_owned(), (id, Arc::new(compressor)));
        dictionaries.decided_kinds.insert(kind.to_owned());
        drop(dictionaries);
        self.samples.lock().remove(kind);
    }

    /// True if bodies with this dictionary id can be decompressed; 0 means no dictionary.
    pub fn has_dictionary(&self, id: u32) -> bool {
        id == 0 || self.dictionaries.read().by_id.contains_key(&id)
    }

    /// The highest dictionary id; 0 if there is none.
    pub fn newest_dictionary(&self) -> u32 {
        self.dictionaries.read().by_id.keys().copied().max().unwrap_or_default()
    }

    /// Compresses a body of a kind (`group/Kind`). Also returns a training set, once, when this body completes it.
    pub fn pack(&self, kind: &str, body: &[u8]) -> Result<(CompressedBody, Option<TrainingSet>), Error> {
        let (dictionary, is_decided) = {
            let dictionaries = self.dictionaries.read();
            (dictionaries.by_kind.get(kind).cloned(), dictionaries.decided_kinds.contains(kind))
        };
        let training = if is_decided { None } else { self.add_sample(kind, body) };
        let mut context = self.compressors.lock().pop().unwrap_or_else(CCtx::create);
        let mut bytes: Vec<u8> = Vec::with_capacity(compress_bound(body.len()));
        let (id, result) = match &dictionary {
            Some((id, dictionary)) => (*id, context.compress_using_cdict(&mut bytes, body, dictionary)),
            None => (0, context.compress(&mut bytes, body, COMPRESSION_LEVEL)),
        };
        let mut idle = self.compressors.lock();
        if idle.len() < MAX_IDLE_CONTEXTS {
            idle.push(context);
        }
        drop(idle);
        result.map_err(|code| Error::Compress(zstd::zstd_safe::get_error_name(code).to_owned()))?;
        bytes.shrink_to_fit();
        Ok((CompressedBody { dictionary: id, bytes }, training))
    }

    /// Adds a sample. Returns the training set of the kind once it is complete.
    fn add_sample(&self, kind: &str, body: &[u8]) -> Option<TrainingSet> {
        let mut all = self.samples.lock();
        let samples = all.entry(kind.to_owned()).or_default();
        if body.len() <= MAX_SAMPLE_BYTES / 4 {
            samples.bytes.extend_from_slice(body);
            samples.sizes.push(body.len());
        }
        if samples.sizes.len() < MAX_SAMPLES && samples.bytes.len() < MAX_SAMPLE_BYTES {
            return None;
        }
        let samples = all.remove(kind)?;
        drop(all);
        self.dictionaries.write().decided_kinds.insert(kind.to_owned());
        Some(TrainingSet { kind: kind.to_owned(), bytes: samples.bytes, sizes: samples.sizes })
    }

    /// Decompresses a body. Fails if it is corrupt or its dictionary is missing.
    pub fn unpack(&self, packed: &[u8], dictionary: u32) -> Result<Bytes, Error> {
        let mut body = Vec::new();
        self.unpack_into(packed, dictionary, &mut body)?;
        Ok(Bytes::from(body))
    }

    /// Decompresses a body into `body`, whose contents it replaces. Fails if it is corrupt or its dictionary is missing;
    /// the contents of `body` are then unspecified.
    pub fn unpack_into(&self, packed: &[u8], dictionary: u32, body: &mut Vec<u8>) -> Result<(), Error> {
        let size = plain_length(packed)?;
        let decompressor = match dictionary {
            0 => None,
            id => {
                let found = self.dictionaries.read().by_id.get(&id).cloned();
                Some(found.ok_or_else(|| Error::Decompress(format!("dictionary {id} is missing")))?)
            }
        };
        let mut context = self.decompressors.lock().pop().unwrap_or_else(DCtx::create);
        body.clear();
        body.reserve_exact(size);
        let result = match &decompressor {
            Some(dictionary) => context.decompress_using_ddict(body, packed, dictionary),
            None => context.decompress(body, packed),
        };
        let mut idle = self.decompressors.lock();
        if idle.len() < MAX_IDLE_CONTEXTS {
            idle.push(context);
        }
        drop(idle);
        result.map(drop).map_err(|code| Error::Decompress(zstd::zstd_safe::get_error_name(code).to_owned()))
    }
}

impl CompressedBody {
    /// Length of the decompressed body in bytes. Fails if the body is corrupt.
    pub fn plain_length(&self) -> Result<usize, Error> {
        plain_length(&self.bytes)
    }
}

fn plain_length(packed: &[u8]) -> Result<usize, Error> {
    let fail = |problem: &str| Error::Decompress(problem.to_owned());
    let size = zstd::zstd_safe::get_frame_content_size(packed).map_err(|_| fail("not a zstd frame"))?;
    let size = size.ok_or_else(|| fail("the size is missing"))? as usize;
    if size > MAX_BODY_BYTES { Err(fail("the size exceeds the limit of an object")) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_round_trip_with_and_without_a_dictionary() {
        let codec = Codec::default();
        let body = |n: usize| format!(r#"{{"kind":"Pod","metadata":{{"name":"web-{n}","labels":{{"app":"web"}}}}}}"#);
        let (plain, _) = codec.pack("/Pod", body(0).as_bytes()).unwrap();
        let training = (1..1000).find_map(|n| codec.pack("/Pod", body(n).as_bytes()).unwrap().1).unwrap();
        codec.install(1, "/Pod", &training.train().unwrap());
        let (small, none) = codec.pack("/Pod", body(0).as_bytes()).unwrap();
        assert!(none.is_none() && small.dictionary == 1 && small.bytes.len() < plain.bytes.len());
        for packed in [plain, small] {
            assert_eq!(codec.unpack(&packed.bytes, packed.dictionary).unwrap(), body(0).as_bytes());
        }
        assert!(codec.unpack(b"damage", 0).is_err());
        assert!(codec.unpack(&codec.pack("/Pod", b"{}").unwrap().0.bytes, 7).is_err());
    }
}
