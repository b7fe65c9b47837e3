#define PER_BRIDGE_IMPORTS_NUMPY
#include "exchange.h"
#include "numpy.h"

namespace py = pybind11;

PYBIND11_MODULE(_bridge, module) {
    using per::bridge::Exchange;
    if (_import_array() < 0 || !per::bridge::ArrayMemory::prepare_type()) throw py::error_already_set();

    module.doc() = "Passes arrays to libper and gives back those of batches; see per._bridging.";
    // Compared with cffi's sizes: a bridge built for another per.h must not be used.
    py::dict sizes;
    sizes["per_array"] = sizeof(per_array);
    sizes["per_steps"] = sizeof(per_steps);
    sizes["per_batch"] = sizeof(per_batch);
    sizes["per_priorities"] = sizeof(per_priorities);
    module.attr("sizes") = sizes;

    py::class_<Exchange>(module, "Exchange", "The calls of a buffer that take or give many arrays.")
        .def(py::init<py::object, py::object, const py::dict&, const py::dict&, py::object, py::object, py::object>(),
             py::arg("plain"), py::arg("handle"), py::arg("addresses"), py::arg("layout"), py::arg("check"),
             py::arg("as_array"), py::arg("make_batch"))
        .def("add", &Exchange::add)
        .def("write", &Exchange::write)
        .def("sample", &Exchange::sample)
        .def("sample_mixture", &Exchange::sample_mixture)
        .def("update", &Exchange::update)
        .def("update_mixture", &Exchange::update_mixture)
        .def("close", &Exchange::close);
}
