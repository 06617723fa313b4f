//! How many objects to ask for at once: pure.

/// Bytes a page should come to.
const AIM: usize = 2 << 20;
/// Objects of the first page, when nothing is known of their size.
const START: u32 = 50;
/// Fewer are asked for only when they would be too many bytes.
const LEAST: u32 = 10;
/// Around the objects.
const ENVELOPE: usize = 16 << 10;

/// What bounds pages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Objects of a page.
    pub objects: u32,
    /// Bytes of a page of several objects.
    pub bytes: usize,
    /// Bytes of a single object: it may be larger than a page.
    pub object: usize,
}

/// The next page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub objects: u32,
    /// More is not read.
    pub bytes: usize,
}

/// What is known of a collection's objects.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pages {
    /// Bytes of an object, in the newest pages more than in those before.
    average: Option<usize>,
    /// Objects that were not too many the last time.
    ceiling: Option<u32>,
}

impl Pages {
    pub fn plan(&self, limits: Limits) -> Plan {
        let most = limits.objects.max(1);
        let room = limits.bytes.max(ENVELOPE * 2) - ENVELOPE;
        // Half as much again as is expected, since no two pages are alike.
        let expected = |objects: u32| {
            let objects = (objects as usize).saturating_mul(3) / 2;
            self.average.unwrap_or_default().saturating_mul(objects)
        };
        let wanted = match self.average {
            None => START,
            Some(average) => u32::try_from(AIM.min(room) / average.max(1)).unwrap_or(u32::MAX).max(LEAST),
        };
        let fit =
            self.average.map_or(most, |average| u32::try_from(room / (average + average / 2).max(1)).unwrap_or(most));
        let objects = wanted.min(most).min(fit).min(self.ceiling.unwrap_or(most)).max(1);
        match objects {
            1 => Plan { objects, bytes: limits.object + ENVELOPE },
            _ => Plan { objects, bytes: expected(objects).max(AIM / 2 * 3).min(room) + ENVELOPE },
        }
    }

    /// A page came whole.
    pub fn came(&mut self, objects: usize, bytes: usize) {
        if let Some(newest) = bytes.checked_div(objects) {
            let newest = newest.max(1);
            self.average = Some(self.average.map_or(newest, |average| average.midpoint(newest)));
        }
        self.ceiling = self.ceiling.map(|ceiling| ceiling.saturating_mul(2));
    }

    /// So many were too much, or took too long. False: there is nothing smaller to ask for.
    pub fn failed(&mut self, objects: u32) -> bool {
        self.ceiling = Some((objects / 2).max(1));
        objects > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { objects: 500, bytes: 16 << 20, object: 8 << 20 };

    #[test]
    fn pages_grow_towards_their_aim() {
        let mut pages = Pages::default();
        let first = pages.plan(LIMITS);
        assert_eq!(first, Plan { objects: 50, bytes: (3 << 20) + ENVELOPE });
        pages.came(50, 50 * 1000);
        assert_eq!(pages.plan(LIMITS).objects, 500, "small objects: as many as are allowed");
        let mut pages = Pages::default();
        pages.came(50, 50 * 10_000);
        assert_eq!(pages.plan(LIMITS).objects, 209, "pods: two MiB");
        let mut pages = Pages::default();
        pages.came(5, 5 << 20);
        let large = pages.plan(LIMITS);
        assert!(large.objects == LEAST && large.bytes <= LIMITS.bytes, "large ones: {large:?}");
        pages.came(1, 6 << 20);
        assert_eq!(pages.plan(LIMITS).objects, 3, "very large ones: as many as fit");
        assert_eq!(Pages::default().plan(Limits { objects: 7, ..LIMITS }).objects, 7);
    }

    #[test]
    fn what_is_too_much_is_asked_for_in_smaller_pages() {
        let mut pages = Pages::default();
        let mut asked = Vec::new();
        loop {
            let plan = pages.plan(LIMITS);
            asked.push(plan.objects);
            if !pages.failed(plan.objects) {
                break;
            }
        }
        assert_eq!(asked, [50, 25, 12, 6, 3, 1]);
        assert_eq!(pages.plan(LIMITS).bytes, LIMITS.object + ENVELOPE, "a single object may be larger than a page");
        pages.came(1, 1000);
        assert_eq!(pages.plan(LIMITS).objects, 2, "and it recovers step by step");
    }

    proptest! {
        #[test]
        fn plans_keep_their_limits(
            objects in 0u32..2000, bytes in 0usize..(32 << 20), object in 0usize..(16 << 20),
            history in prop::collection::vec((any::<bool>(), 0usize..600, 0usize..(64 << 20)), 0..20),
        ) {
            let limits = Limits { objects, bytes, object };
            let mut pages = Pages::default();
            for (came, number, size) in history {
                if came { pages.came(number, size) } else { let _ = pages.failed(pages.plan(limits).objects); }
                let plan = pages.plan(limits);
                prop_assert!(plan.objects >= 1 && plan.objects <= objects.max(1));
                let most = if plan.objects == 1 { object + ENVELOPE } else { bytes.max(ENVELOPE * 2) };
                prop_assert!(plan.bytes <= most, "{plan:?}");
            }
        }
    }
}
