#include "draws.h"

#include <algorithm>
#include <cmath>

namespace bench {

void importance_weights(Draws& draws) {
    const float smallest = *std::min_element(draws.priorities.begin(), draws.priorities.end());
    std::transform(draws.priorities.begin(), draws.priorities.end(), draws.weights.begin(),
                   [=](float priority) { return std::pow(smallest / priority, weights_beta); });
}

}  // namespace bench
