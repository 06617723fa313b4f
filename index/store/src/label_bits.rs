//! Label bits: a 64-bit Bloom filter of an object's labels. It is short enough for the index of keys, so a scan for
//! labels skips most rows without them while it reads only the index.
//!
//! The bits are stored, so they must not change. Other hashes need a migration that sets all bits of stored rows.

use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// The bits of an object with these labels.
pub(super) fn of_labels(labels: &BTreeMap<String, String>) -> i64 {
    let mut label = String::new();
    labels.iter().fold(0, |bits, (key, value)| {
        label.clear();
        label.extend([key.as_str(), "=", value.as_str()]);
        bits | of_text(&label)
    })
}

/// The bits of all objects that have this label: two, or one if they coincide. Of the objects with five other labels,
/// about one in fifty has them too.
pub(super) fn of_label(key: &str, value: &str) -> i64 {
    of_text(&format!("{key}={value}"))
}

fn of_text(label: &str) -> i64 {
    let hash = xxh3_64(label.as_bytes());
    (1 << (hash & 63)) | (1 << ((hash >> 6) & 63))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_object_has_the_bits_of_each_of_its_labels(
            labels in prop::collection::btree_map("[a-z./]{1,8}", "[a-z0-9]{0,6}", 0..20)
        ) {
            let bits = of_labels(&labels);
            for (key, value) in &labels {
                let required = of_label(key, value);
                prop_assert_eq!(bits & required, required);
            }
        }
    }

    #[test]
    fn most_objects_lack_the_bits_of_other_labels() {
        let bits = |nth: u32| {
            let label = |key: &str| (key.to_owned(), format!("{key}-{nth}"));
            of_labels(&BTreeMap::from(["app", "team", "tier", "version", "zone"].map(label)))
        };
        let bits_of = |nth: u32| of_label("app", &format!("app-{nth}"));
        let others = (0..100).flat_map(|first| (100..200).map(move |second| (first, second)));
        let mistaken = others.filter(|(first, second)| bits(*second) & bits_of(*first) == bits_of(*first)).count();
        assert!(mistaken < 500, "{mistaken} of 10000");
    }
}
