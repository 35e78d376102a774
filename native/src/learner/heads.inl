// Heads of losses: distributions over actions, the clipped surrogate. Part of the kernels' text, inside their namespace.
//
// exp and log are written out, so that bits do not depend on the C library.

constexpr float kHalfLog2Pi = 0.91893853320467274f;

// 2^n e^r with |r| <= log(2) / 2, a polynomial of degree 6: to 1.2e-7 of its value; 0 below -87, infinite above 88.
inline float exp_of(float x) {
  if (!(x > -87.0f)) return x == x ? 0.0f : x;
  if (x > 88.0f) return __builtin_inff();
  const float n = __builtin_floorf(x * 1.44269504088896341f + 0.5f);
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float sum = 1.0f / 720.0f;
  sum = sum * r + 1.0f / 120.0f;
  sum = sum * r + 1.0f / 24.0f;
  sum = sum * r + 1.0f / 6.0f;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const int bits = (static_cast<int>(n) + 127) << 23;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return sum * power;
}

// The logarithm of a number of at least 1, by 2 atanh((m - 1) / (m + 1)) for m from sqrt(1/2) to sqrt(2), in double.
inline float log_of(float x) {
  if (!(x < __builtin_inff())) return x;
  int bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  int exponent = ((bits >> 23) & 255) - 127;
  bits = (bits & 0x7fffff) | 0x3f800000;
  float mantissa;
  __builtin_memcpy(&mantissa, &bits, sizeof mantissa);
  if (mantissa > 1.41421356f) {
    mantissa *= 0.5f;
    ++exponent;
  }
  const double t = (mantissa - 1.0) / (mantissa + 1.0), square = t * t;
  double sum = 1.0 / 13.0;
  for (int term = 11; term >= 1; term -= 2) sum = sum * square + 1.0 / term;
  return static_cast<float>(2.0 * t * sum + exponent * 0.69314718055994531);
}

constexpr Size kBlock = 64;

// Logits [rows, n] of at most kBlock rows -> the logarithms of the sums of their exponentials [rows]. Sampling and learning
// share it as one function that is not inlined: the compiler might contract two copies of it differently.
[[gnu::noinline]] void log_sums(const float* logits, Size rows, Size n, float* found) {
  float most[kBlock], total[kBlock];
  for (Size row = 0; row < rows; ++row) most[row] = logits[row * n], total[row] = 0.0f;
  for (Size i = 1; i < n; ++i)
    for (Size row = 0; row < rows; ++row) {
      const float value = logits[row * n + i];
      most[row] = value > most[row] || value != value ? value : most[row];
    }
  for (Size i = 0; i < n; ++i)
    for (Size row = 0; row < rows; ++row) total[row] += exp_of(logits[row * n + i] - most[row]);
  for (Size row = 0; row < rows; ++row) found[row] = most[row] + log_of(total[row]);
}

void sample(const float* logits, const float* noise, Size rows, Size n, std::int64_t* action, float* chosen) {
  float shifts[kBlock];
  for (Size first = 0; first < rows; first += kBlock) {
    const Size count = rows - first < kBlock ? rows - first : kBlock;
    log_sums(logits + first * n, count, n, shifts);
    for (Size row = first; row < first + count; ++row) {
      const float *own = logits + row * n, *drawn = noise + row * n;
      Size best = 0;
      float most = own[0] + drawn[0];
      for (Size i = 1; i < n && most == most; ++i) {
        const float value = own[i] + drawn[i];
        if (value > most || value != value) most = value, best = i;
      }
      action[row] = static_cast<std::int64_t>(best);
      chosen[row] = own[best] - shifts[row - first];
    }
  }
}

bool choice(const float* logits, const std::int64_t* action, Size rows, Size n, float* log_probabilities,
            float* chosen, float* entropy) {
  float shifts[kBlock];
  for (Size row = 0; row < rows; ++row, logits += n, log_probabilities += n) {
    if (action[row] < 0 || static_cast<Size>(action[row]) >= n) return false;
    if (row % kBlock == 0) log_sums(logits, rows - row < kBlock ? rows - row : kBlock, n, shifts);
    const float shift = shifts[row % kBlock];
    float sum = 0.0f;
    for (Size i = 0; i < n; ++i) {
      const float value = logits[i] - shift;
      log_probabilities[i] = value;
      sum += exp_of(value) * value;
    }
    chosen[row] = log_probabilities[action[row]];
    entropy[row] = -sum;
  }
  return true;
}

void choice_back(const float* log_probabilities, const std::int64_t* action, const float* entropy,
                 const float* to_chosen, const float* to_entropy, Size rows, Size n, float* to_logits) {
  for (Size row = 0; row < rows; ++row, log_probabilities += n, to_logits += n) {
    const float chosen = to_chosen ? to_chosen[row] : 0.0f, spread = to_entropy ? to_entropy[row] : 0.0f;
    for (Size i = 0; i < n; ++i) {
      const float probability = exp_of(log_probabilities[i]);
      to_logits[i] = -probability * (chosen + spread * (log_probabilities[i] + entropy[row]));
    }
    to_logits[action[row]] += chosen;
  }
}

void density(const float* mean, const float* log_std, const float* action, Size rows, Size n, float* standardised,
             float* log_density, float* entropy) {
  float spread = 0.0f;
  for (Size i = 0; i < n; ++i) spread += log_std[i] + 0.5f + kHalfLog2Pi;
  for (Size row = 0; row < rows; ++row) {
    log_density[row] = 0.0f;
    entropy[row] = spread;
  }
  for (Size i = 0; i < n; ++i) {
    const float inverse = exp_of(-log_std[i]), constant = log_std[i] + kHalfLog2Pi;
    for (Size row = 0; row < rows; ++row) {
      const float value = (action[row * n + i] - mean[row * n + i]) * inverse;
      standardised[row * n + i] = value;
      log_density[row] -= 0.5f * value * value + constant;
    }
  }
}

void density_back(const float* standardised, const float* log_std, const float* to_density, Size rows, Size n,
                  float* to_mean, float* to_log_std) {
  for (Size i = 0; i < n; ++i) {
    const float inverse = exp_of(-log_std[i]);
    float sum = 0.0f;
    for (Size row = 0; row < rows; ++row) {
      const float value = standardised[row * n + i], gradient = to_density[row];
      to_mean[row * n + i] = gradient * value * inverse;
      sum += gradient * (value * value - 1.0f);
    }
    to_log_std[i] = sum;
  }
}

// log(1 - tanh(u)^2) in a form that is finite where tanh(u) rounds to 1: 2 (log 2 - u - softplus(-2u)).
inline float log_slope_of(float u) {
  const float twice = -2.0f * u, size = twice < 0.0f ? twice : -twice;
  const float softplus = (twice > 0.0f ? twice : 0.0f) + log_of(1.0f + exp_of(size));
  return 2.0f * (0.69314718f - u - softplus);
}

inline float clamped(float value, float low, float high) { return value < low ? low : value > high ? high : value; }

void squash(const float* outputs, const float* noise, Size rows, Size n, float low, float high, float* action,
            float* log_density) {
  for (Size row = 0; row < rows; ++row, outputs += 2 * n, noise += n, action += n) {
    float sum = 0.0f;
    for (Size i = 0; i < n; ++i) {
      const float log_std = clamped(outputs[n + i], low, high);
      const float u = outputs[i] + noise[i] * exp_of(log_std);
      action[i] = tanh_of(u);
      sum -= 0.5f * noise[i] * noise[i] + log_std + kHalfLog2Pi + log_slope_of(u);
    }
    log_density[row] = sum;
  }
}

// The density falls by the slope's logarithm, whose derivative is -2 tanh(u), and by the logarithm of the deviation.
void squash_back(const float* outputs, const float* noise, const float* action, const float* to_action,
                 const float* to_density, Size rows, Size n, float low, float high, float* to_outputs) {
  for (Size row = 0; row < rows; ++row, outputs += 2 * n, noise += n, action += n, to_outputs += 2 * n) {
    const float density = to_density ? to_density[row] : 0.0f;
    for (Size i = 0; i < n; ++i) {
      const float given = outputs[n + i], log_std = clamped(given, low, high);
      float to_free = 2.0f * density * action[i];
      if (to_action) to_free += to_action[row * n + i] * (1.0f - action[i] * action[i]);
      to_outputs[i] = to_free;
      to_outputs[n + i] = given == log_std ? to_free * noise[i] * exp_of(log_std) - density : 0.0f;
    }
  }
}

void surrogate(const float* log_probability, const float* behaviour, const float* advantage, Size rows,
               float clip_range, float* result, float* slope, float* divergence, float* is_clipped) {
  const float low = 1.0f - clip_range, high = 1.0f + clip_range;
  for (Size row = 0; row < rows; ++row) {
    const float log_ratio = log_probability[row] - behaviour[row], ratio = exp_of(log_ratio);
    const float clipped = ratio < low ? low : ratio > high ? high : ratio;
    const bool is_free = ratio * advantage[row] <= clipped * advantage[row];
    result[row] = (is_free ? ratio : clipped) * advantage[row];
    slope[row] = is_free ? ratio * advantage[row] : 0.0f;
    divergence[row] = ratio - 1.0f - log_ratio;
    is_clipped[row] = ratio != clipped ? 1.0f : 0.0f;
  }
}
