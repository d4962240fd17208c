//! How many bins each layer's keys and values are quantised to: LMCache's table of models, and its
//! rule by the number of layers.

use crate::{Error, ErrorKind};

// Symbols are signed bytes: 2 * (129 / 2 - 1) = 126 is the greatest. Below 4 bins nothing is left.
const BINS_MIN: u8 = 4;
const BINS_MAX: u8 = 129;

const MODELS: [(&str, usize); 6] = [
    ("mistralai/Mistral-7B-Instruct-v0.2", 32),
    ("lmsys/longchat-7b-16k", 32),
    ("Qwen/Qwen-7B", 32),
    ("meta-llama/Llama-3.1-8B-Instruct", 32),
    ("THUDM/glm-4-9b-chat", 40),
    ("test_model", 32),
];

/// Layers `start..end` are quantised to `bins` bins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BinRange {
    /// The first layer.
    pub start: usize,
    /// The layer after the last one.
    pub end: usize,
    /// The number of bins, 4 to 129.
    pub bins: u8,
}

/// The bins of each layer's keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bins {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Bins {
    /// The bins of a model in LMCache's own table, `None` for all others: LMCache asks Hugging Face
    /// for their number of layers, and takes [`Bins::for_layers`].
    pub fn for_model(name: &str) -> Option<Bins> {
        let (_, layers) = MODELS.iter().find(|(model, _)| *model == name)?;
        Some(Bins::for_layers(*layers))
    }

    /// LMCache's bins for a model of `layers` layers: 32 below 10 layers. Otherwise the keys of the
    /// first 10 and the values of the first 2 have 32, the rest 16.
    pub fn for_layers(layers: usize) -> Bins {
        let with_fine = |fine: usize| {
            let fine = if layers < 10 { layers } else { fine };
            (0..layers).map(|layer| if layer < fine { 32 } else { 16 }).collect()
        };
        Bins { key: with_fine(10), value: with_fine(2) }
    }

    /// Bins by ranges of layers, which together name each of `layers` layers; where two name the
    /// same, the later counts. Errors: `Invalid`, a layer is missing, bins are outside 4 to 129, or
    /// keys and values have other maxima: LMCache cannot join their CDFs.
    pub fn from_ranges(layers: usize, key: &[BinRange], value: &[BinRange]) -> Result<Bins, Error> {
        let bins = Bins { key: by_layer(layers, key)?, value: by_layer(layers, value)? };
        if bins.key.iter().max() != bins.value.iter().max() {
            return Err(invalid("the greatest bins of keys and of values differ".into()));
        }
        Ok(bins)
    }

    /// Bins as a stored frame has them, one byte for each layer. Nothing where no [`Bins`] are like
    /// that.
    pub(super) fn from_stored(key: &[u8], value: &[u8]) -> Option<Bins> {
        let are_bins = |bins: &[u8]| bins.iter().all(|bins| (BINS_MIN..=BINS_MAX).contains(bins));
        let fit = key.len() == value.len() && key.iter().max() == value.iter().max();
        let valid = fit && are_bins(key) && are_bins(value);
        valid.then(|| Bins { key: key.to_vec(), value: value.to_vec() })
    }

    /// The number of layers.
    pub fn layers(&self) -> usize {
        self.key.len()
    }

    /// The bins of each layer's keys.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The bins of each layer's values.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The greatest of all, which every CDF has.
    pub(super) fn most(&self) -> usize {
        self.key.iter().chain(&self.value).copied().max().unwrap_or(BINS_MIN).into()
    }
}

fn by_layer(layers: usize, ranges: &[BinRange]) -> Result<Vec<u8>, Error> {
    let mut bins = vec![0; layers];
    for range in ranges {
        if !(BINS_MIN..=BINS_MAX).contains(&range.bins) {
            return Err(invalid(format!("{} bins are not {BINS_MIN} to {BINS_MAX}", range.bins)));
        }
        let named = bins.get_mut(range.start..range.end).ok_or_else(|| {
            invalid(format!("no layers {} to {} of {layers}", range.start, range.end))
        })?;
        named.fill(range.bins);
    }
    match bins.iter().position(|bins| *bins == 0) {
        Some(layer) => Err(invalid(format!("no bins for layer {layer}"))),
        None => Ok(bins),
    }
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::Invalid, format!("bins of CacheGen: {why}"))
}
