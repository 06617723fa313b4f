//! Token bucket: limits a rate and allows bursts. The current time is an argument.

use std::time::Instant;

/// A bucket of tokens that is refilled at a constant rate. A new bucket is full.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenBucket {
    rate_per_second: f64,
    /// Maximum number of tokens.
    burst: f64,
    /// Number of tokens at `updated_at`.
    tokens: f64,
    updated_at: Instant,
}

impl TokenBucket {
    /// Creates a full bucket for up to `burst` tokens.
    pub fn new(rate_per_second: f64, burst: f64, now: Instant) -> Self {
        TokenBucket { rate_per_second, burst, tokens: burst, updated_at: now }
    }

    /// Takes one token. Returns false if less than one is available.
    pub fn try_take(&mut self, now: Instant) -> bool {
        self.tokens = self.tokens_at(now);
        self.updated_at = self.updated_at.max(now);
        let is_available = self.tokens >= 1.0;
        if is_available {
            self.tokens -= 1.0;
        }
        is_available
    }

    /// True if the bucket is full, so that a new bucket can replace it.
    pub fn is_full(&self, now: Instant) -> bool {
        self.tokens_at(now) >= self.burst
    }

    fn tokens_at(&self, now: Instant) -> f64 {
        let refilled = now.saturating_duration_since(self.updated_at).as_secs_f64() * self.rate_per_second;
        (self.tokens + refilled).min(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tokens_are_limited_to_the_burst() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(50.0, 200.0, start);
        let take_all = |bucket: &mut TokenBucket, now| (0..1_000).filter(|_| bucket.try_take(now)).count();
        assert!(bucket.is_full(start));
        assert_eq!(take_all(&mut bucket, start), 200);
        assert_eq!(take_all(&mut bucket, start + Duration::from_millis(100)), 5);
        assert!(!bucket.is_full(start + Duration::from_secs(2)));
        assert!(bucket.is_full(start + Duration::from_secs(60)));
        assert_eq!(take_all(&mut bucket, start + Duration::from_secs(60)), 200);
        assert_eq!(take_all(&mut bucket, start), 0, "no tokens without elapsed time");
    }
}
