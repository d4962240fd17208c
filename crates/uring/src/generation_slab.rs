/// Values under numbers that are never reused: a number is a place and how often that place was
/// used before. A late completion for a value that is gone finds nothing.
#[derive(Debug)]
pub struct GenerationSlab<T> {
    places: Vec<(u32, Option<T>)>,
    empty: Vec<u32>,
}

// A number is `generation << 32 | place`. A place is reused at once, and its generation grows with
// every removal, so two values that had the same place have different numbers. The generation wraps
// after 2^31 uses of one place. A completion that late would need a request that stayed in the
// kernel while two billion others went through the same place.
impl<T> GenerationSlab<T> {
    pub fn new() -> Self {
        GenerationSlab { places: Vec::new(), empty: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.empty.len()
    }

    pub fn insert(&mut self, value: T) -> u64 {
        let at = self.empty.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (generation, place) = &mut self.places[at as usize];
        *place = Some(value);
        number(*generation, at)
    }

    pub fn get(&mut self, number: u64) -> Option<&mut T> {
        let (generation, value) = self.places.get_mut(number as u32 as usize)?;
        value.as_mut().filter(|_| *generation == (number >> 32) as u32)
    }

    pub fn remove(&mut self, number: u64) -> Option<T> {
        self.get(number)?;
        let (generation, place) = self.places.get_mut(number as u32 as usize)?;
        // Half of all generations, so that no number has its top bit set: those are the reactor's
        // own.
        *generation = (*generation + 1) & (u32::MAX >> 1);
        self.empty.push(number as u32);
        place.take()
    }

    /// The numbers of all values.
    pub fn numbers(&self) -> Vec<u64> {
        let full = self.places.iter().enumerate().filter(|(_, (_, value))| value.is_some());
        full.map(|(at, (generation, _))| number(*generation, at as u32)).collect()
    }
}

fn number(generation: u32, at: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_place_gets_another_number() {
        let mut slab = GenerationSlab::new();
        let a = slab.insert("a");
        assert_eq!(slab.remove(a), Some("a"));
        let b = slab.insert("b");
        assert_ne!(a, b);
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.remove(a), None);
        assert_eq!((slab.len(), slab.numbers()), (1, vec![b]));
        assert_eq!(slab.remove(b), Some("b"));
        assert_eq!(slab.len(), 0);
    }
}
